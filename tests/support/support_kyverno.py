"""The result of a Kyverno policy for a pod: as much of its engine as the chart's policy uses.

Kyverno itself needs a cluster, or its command line, which is in no package registry. So this follows its documentation:
rules in order, each on the result of the previous one; ``foreach`` with ``element``; strategic merges, in which lists
use the merge key of Kubernetes and new items come first. An expression that is not in the table is an error.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

Map = dict[str, Any]
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}
"""x-kubernetes-patch-merge-key of the fields of a Pod."""

_EXPRESSION = re.compile(r"\{\{([^{}]*)\}\}")
_META = re.compile(r'request\.object\.metadata\.(annotations|labels)\."([^"]+)"')

EXPRESSIONS: dict[str, Callable[[Map, Map], Any]] = {
    "element.name": lambda request, element: element["name"],
    "element.env[].name || `[]`": lambda request, element: [one["name"] for one in element.get("env", [])],
    "element.env[?name=='PYTHONPATH' && value != null && !contains(value, '/opt/whyidle-hooks')] || `[]` | length(@)": (
        lambda request, element: len([value for value in _literals(element) if "/opt/whyidle-hooks" not in value])
    ),
    "element.env[?name=='PYTHONPATH'].value | [0]": lambda request, element: _literals(element)[0],
    "request.namespace": lambda request, element: request["namespace"],
}


def _literals(element: Map) -> list[str]:
    return [one["value"] for one in element.get("env", []) if one["name"] == "PYTHONPATH" and "value" in one]


def mutate(policy: Map, pod: Map, namespace: str) -> Map:
    """The pod as it would be created."""
    pod = copy.deepcopy(pod)
    for rule in policy["spec"]["rules"]:
        if not any(_matches(one["resources"], pod) for one in rule["match"]["any"]):
            continue
        request = {"namespace": namespace, "object": pod}
        if not _holds(rule.get("preconditions", {}), request, {}):
            continue
        mutation = rule["mutate"]
        for each in mutation.get("foreach", ()):
            assert each["list"] == "request.object.spec.containers"
            for element in copy.deepcopy(pod["spec"]["containers"]):
                if _holds(each["preconditions"], request, element):
                    _merge(pod, _filled(each["patchStrategicMerge"], request, element))
        _merge(pod, _filled(mutation.get("patchStrategicMerge", {}), request, {}))
    return pod


def _matches(resources: Map, pod: Map) -> bool:
    assert resources["kinds"] == ["Pod"]
    assert resources["operations"] == ["CREATE"]
    own = pod["metadata"].get("annotations", {})
    patterns = resources["annotations"]
    assert set(patterns.values()) == {"?*"}, "at least one character"
    return all(own.get(name) for name in patterns)


def _holds(preconditions: Map, request: Map, element: Map) -> bool:
    assert set(preconditions) <= {"all"}
    return all(_condition(one, request, element) for one in preconditions.get("all", ()))


def _condition(one: Map, request: Map, element: Map) -> bool:
    key, value = (_filled(one[side], request, element) for side in ("key", "value"))
    compare: dict[str, Callable[[], bool]] = {
        "Equals": lambda: key == value,
        "NotEquals": lambda: key != value,
        "GreaterThan": lambda: key > value,
        "AnyNotIn": lambda: key not in value,
    }
    return compare[one["operator"]]()


def _filled(value: Any, request: Map, element: Map) -> Any:
    """With all expressions replaced. A value that is only an expression keeps its type."""
    if isinstance(value, dict):
        return {name: _filled(part, request, element) for name, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, request, element) for part in value]
    if not isinstance(value, str):
        return value
    alone = _EXPRESSION.fullmatch(value)
    if alone:
        return _evaluate(alone[1].strip(), request, element)
    return _EXPRESSION.sub(lambda found: str(_evaluate(found[1].strip(), request, element)), value)


def _evaluate(expression: str, request: Map, element: Map) -> Any:
    if expression in EXPRESSIONS:
        return EXPRESSIONS[expression](request, element)
    for part in expression.split(" || "):
        if part == "''":
            return ""
        found = _META.fullmatch(part)
        assert found, f"what does {expression!r} mean?"
        value = request["object"]["metadata"].get(found[1], {}).get(found[2])
        if value:
            return value
    raise AssertionError(f"{expression!r} has no value here: Kyverno would fail the rule")


def _merge(into: Map, patch: Map) -> None:
    for name, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        elif isinstance(value, list) and name in MERGE_KEYS:
            into[name] = _merged_list(into.get(name, []), value, MERGE_KEYS[name])
        else:
            into[name] = value


def _merged_list(old: list[Map], patch: list[Map], key: str) -> list[Map]:
    merged = list(old)
    for item in patch:
        known = next((one for one in merged if one[key] == item[key]), None)
        if known is None:
            merged.insert(0, item)
        else:
            _merge(known, item)
    return merged
