"""The queries in generated rules and dashboards, the series that they name, and Grafana's variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support_yaml import read_yaml

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "dashboards" / "generated").glob("*.json"))
RULES = sorted((ROOT / "alerts" / "generated").glob("*.yaml"))

_QUOTED = r'(?:"(?:[^"\\]|\\.)*"|`[^`]*`)'
_BRACES = rf"\{{(?:[^}}\"`$]|{_QUOTED}|\$\{{\w+:\w+\}}|\$)*\}}"
_NO_OPERATORS = re.compile(rf"{_BRACES}|{_QUOTED}")
_SELECTOR = re.compile(rf"\b((?:whyidle_|process_|[a-z_]+:)[a-zA-Z0-9_:]+|up|ALERTS)\b(?!\()({_BRACES})?")
_COMPARISON = re.compile(r"(?<![=!<>~])(==|!=|>=|<=|>|<)(?![=~])(?!\s*bool)")
_PAST = re.compile(r" offset \d+[smhdw]")
_GRAFANA = re.compile(r"\$(?:\{(\w+)(?::(\w+))?\}|([a-zA-Z_]\w*))")
_SPECIAL = re.compile(r"[\\^$*+?.()|\[\]{}/]")
ALL = ".*"
"""The value of All, which Grafana writes unchanged."""
_LABEL_VALUES = re.compile(r"label_values\((.*), *(\w+)\)")
_RESULT = re.compile(r"query_result\((.*)\)")
_LOOKS = re.compile(r"(?<=:)\w+\]")


@dataclass(frozen=True)
class Query:
    """One expression, and its place."""

    where: str
    expression: str

    def __str__(self) -> str:
        return f"{self.where}: {self.expression}"


def dashboard_queries(path: Path) -> list[Query]:
    """The queries of all panels and annotations."""
    dashboard = json.loads(path.read_text())
    found = [
        Query(f"{panel['title']} {target.get('refId', '')}", target["expr"])
        for panel in _panels(dashboard["panels"])
        for target in panel.get("targets", ())
    ]
    for annotation in dashboard.get("annotations", {}).get("list", ()):
        if "expr" in annotation:
            found.append(Query(f"annotation {annotation['name']}", annotation["expr"]))
    return found


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))


@dataclass(frozen=True)
class Listed:
    """A variable that lists what a query finds."""

    name: str
    expression: str
    label: str
    """The label that it lists. Empty if ``pattern`` finds the value in the text of a result."""
    pattern: str
    several: bool

    def values(self, results: Iterable[tuple[Mapping[str, str], str]]) -> list[str]:
        """The values, from labels and values of the results, as Grafana finds them."""
        if self.label:
            return sorted({labels[self.label] for labels, _ in results if self.label in labels})
        found = (re.search(self.pattern, _as_text(labels, value)) for labels, value in results)
        return [match[1] for match in found if match]


def _as_text(labels: Mapping[str, str], value: str) -> str:
    """A result as Grafana writes it for variables: it does not escape anything."""
    inside = ",".join(f'{name}="{text}"' for name, text in labels.items() if name != "__name__")
    return f"{labels.get('__name__', '')}{{{inside}}} {value} 1764000000000"


def listed(path: Path) -> list[Listed]:
    """Variables with a query, in order."""
    return [listing(variable) for variable in _variables(path, "query")]


def listing(variable: Mapping[str, Any]) -> Listed:
    name, text, several = variable["name"], variable["query"]["query"], variable["multi"]
    if match := _LABEL_VALUES.fullmatch(text):
        return Listed(name, match[1], match[2], "", several)
    match = _RESULT.fullmatch(text)
    assert match, f"variable {name}: {text}"
    return Listed(name, match[1], "", variable["regex"].strip("/"), several)


def fixed(path: Path) -> dict[str, str]:
    """The values of variables with fixed values."""
    found = {}
    for variable in _variables(path, "custom", "interval", "constant", "textbox"):
        options = variable.get("options") or [variable["current"]]
        found[variable["name"]] = next((one for one in options if one.get("selected")), options[0])["value"]
    return found


def _variables(path: Path, *types: str) -> list[dict[str, Any]]:
    return [one for one in json.loads(path.read_text())["templating"]["list"] if one["type"] in types]


Value = str | list[str]
"""The value of a variable. A list if it allows several."""


def filled(expression: str, variables: Mapping[str, Value]) -> str:
    """With Grafana's variables replaced, in Grafana's format. Raises KeyError for an undefined variable."""

    def written(match: re.Match[str]) -> str:
        value = variables[match[1] or match[3]]
        if match[2] == "json":
            return json.dumps(value)
        if match[2] == "regex":
            return ALL if value == ALL else _pattern(value)
        assert isinstance(value, str), f"several values, and no format: {match[0]}"
        return value

    return _GRAFANA.sub(written, expression)


def _pattern(value: Value) -> str:
    escaped = [_SPECIAL.sub(r"\\\g<0>", one) for one in ([value] if isinstance(value, str) else value)]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def looking_often(expression: str, step: str) -> str:
    """With a shorter step in subqueries, for a history that is too short for theirs."""
    return _LOOKS.sub(f"{step}]", expression)


def rule_queries(path: Path) -> list[tuple[str, Query]]:
    """The kind of each rule, `record` or `alert`, and its expression."""
    found = []
    for group in read_yaml(path.read_text())["groups"]:
        for rule in group["rules"]:
            kind = "record" if "record" in rule else "alert"
            found.append((kind, Query(rule[kind], rule["expr"])))
    return found


def selectors(expression: str) -> set[str]:
    """The selectors of series that an expression reads, without ranges."""
    return {match[0] for match in _SELECTOR.finditer(expression)}


def without_thresholds(expression: str) -> str:
    """The expression with every comparison turned from a filter into a value, and without offsets.

    Only joins and sums remain: the result is empty only if there is nothing to compare.
    """
    parts, end = [], 0
    for literal in _NO_OPERATORS.finditer(expression):
        parts += [_valued(expression[end : literal.start()]), literal[0]]
        end = literal.end()
    return _PAST.sub("", "".join([*parts, _valued(expression[end:])]))


def _valued(text: str) -> str:
    return _COMPARISON.sub(r"\1 bool", text)
