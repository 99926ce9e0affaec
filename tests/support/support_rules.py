"""Cases of recording rules, run by promtool.

A case has what ranks spent, by cause, and what nodes counted. A number is the rate of a counter, per second. A text is
a series in promtool's notation, with a sample each 15 s or `every` that often, the same for all of a file.
`run/rank@node` is a rank, `owner:run/rank@node` a rank of an owner's run; `@node` in a series stands for the labels of
that node's agent. `windows` are those that are checked, and when. W stands for them in expected results. Rules are
evaluated once a minute, like the shipped ones, or every two minutes if that takes hours.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from support_promtool import RECORDED, lenient, needed, run_tests
from support_sums import with_sums
from support_yaml import write_yaml

from whyidle.agent.metrics.gpu import UNHOOKED_FAMILY
from whyidle.alerts import recording
from whyidle.alerts.config import DEFAULT
from whyidle.alerts.output import groups as all_groups
from whyidle.alerts.output import to_yaml
from whyidle.alerts.rule import Group
from whyidle.ledger.causes import CAUSE_FAMILY

SAMPLES = 250
LONG_MINUTES = 10
SELDOM = "2m"
"""How often rules are evaluated where a case takes hours. After 5 minutes, their results would be too old."""

Series = Iterator[tuple[str, str]]


def assert_promtool(cases: list[dict[str, Any]], directory: Path) -> None:
    done = promtool_test(cases, directory)
    assert done.returncode == 0, done.stdout + done.stderr


def promtool_test(cases: list[dict[str, Any]], directory: Path) -> subprocess.CompletedProcess[str]:
    """Lets promtool run the cases, each with the rules of its windows. A long case has a file to itself, because
    promtool evaluates all rules of a file for each of its cases."""
    files: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for number, case in enumerate(cases):
        files.setdefault((*case["windows"], number if _is_long(case) else ""), []).append(case)
    paths = [_promtool_file(some, str(number), directory) for number, some in enumerate(files.values())]
    return run_tests(paths, directory)


def assert_all_rules(test: dict[str, Any], directory: Path) -> None:
    """Lets promtool run one of its tests with all alerts and the recording rules that they use, as shipped."""
    groups = needed(all_groups(), [])
    (directory / "rules.yaml").write_text(to_yaml(groups))
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": SELDOM,
        "group_eval_order": [group.name for group in groups],
        "tests": [test],
        **lenient(),
    }
    (directory / "test.yaml").write_text(write_yaml(document, sort_keys=False, width=1_000_000))
    done = run_tests(["test.yaml"], directory)
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]


def _is_long(case: dict[str, Any]) -> bool:
    """Whether the case has too many evaluations to run rules that it does not need."""
    return _takes_hours(case) or any(int(at.partition("m")[0]) >= LONG_MINUTES for at in case["windows"].values())


def _takes_hours(case: dict[str, Any]) -> bool:
    return any("h" in at for at in case["windows"].values())


def _promtool_file(cases: list[dict[str, Any]], name: str, directory: Path) -> Path:
    """Writes the rules and one of promtool's test files for cases of one kind, and returns that."""
    groups, tests = _looked_at(tuple(cases[0]["windows"])), [_test(case) for case in cases]
    if _is_long(cases[0]):
        groups = needed(groups, [one["expr"] for test in tests for one in test["promql_expr_test"]])
    (directory / f"rules-{name}.yaml").write_text(to_yaml(groups))
    document = {
        "rule_files": [f"rules-{name}.yaml"],
        "evaluation_interval": SELDOM if _takes_hours(cases[0]) else DEFAULT.interval,
        # Without it, groups are evaluated in any order.
        "group_eval_order": [group.name for group in groups],
        "tests": tests,
        **lenient(),
    }
    path = directory / f"tests-{name}.yaml"
    path.write_text(write_yaml(document, sort_keys=False, width=1_000))
    return path


def _looked_at(windows: tuple[str, ...]) -> list[Group]:
    """The rules without those of other windows, which differ only in the window."""
    used_by_others = (*windows, DEFAULT.window, DEFAULT.long_window)
    others = tuple(window for window in DEFAULT.windows if window not in used_by_others)
    found = [
        replace(group, rules=tuple(rule for rule in group.rules if not rule.name.endswith(others)))
        for group in recording.groups(DEFAULT)
    ]
    used = {name for group in found for rule in group.rules for name in RECORDED.findall(rule.expr)}
    assert used <= {rule.name for group in found for rule in group.rules}
    return [group for group in found if group.rules]


def _test(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": case["name"],
        "interval": f"{_every(case)}s",
        "input_series": [{"series": name, "values": values} for name, values in with_sums(_series(case))],
        "promql_expr_test": [
            _expected(expr.replace("W", window), at, samples)
            for window, at in case["windows"].items()
            for expr, samples in case["expect"].items()
        ],
    }


def _expected(expr: str, at: str, samples: Mapping[str, float]) -> dict[str, Any]:
    if expr.startswith("node_adapter:whyidle_traffic"):  # the last digit of these differs between versions
        rounded = [{"labels": labels, "value": value} for labels, value in samples.items()]
        return {"expr": f"round({expr}, 0.000001)", "eval_time": at, "exp_samples": rounded}
    recorded = RECORDED.match(expr)
    name = recorded[0] if recorded else ""
    return {
        "expr": expr,
        "eval_time": at,
        "exp_samples": [{"labels": f"{name}{labels}", "value": value} for labels, value in samples.items()],
    }


def _series(case: dict[str, Any]) -> Series:
    every = _every(case)
    for node in sorted({place.partition("@")[2] for place in case.get("spent", {})}):
        yield f'whyidle_collector_up{{{_agent(node)}, collector="ranks"}}', f"1x{SAMPLES}"
    for place, causes in case.get("spent", {}).items():
        yield from _spent(place, causes, every)
        if place[0] != "@":
            yield f'whyidle_rank_info{{{_rank(place)}, {_place(place)}, world_size="8"}}', f"1x{SAMPLES}"
            yield f"whyidle_rank_up{{{_rank(place)}}}", case.get("up", {}).get(place, f"1x{SAMPLES}")
    for place, families in case.get("late", {}).items():
        for family, values in families.items():
            node = place.partition("@")[2]
            labels = f'{_rank(place)}, node="{node}", family="{family}"'
            yield f"whyidle_late_seconds_total{{{labels}}}", _values(values, every)
    for place, families in case.get("waited_for", {}).items():
        for family, values in families.items():
            yield f'whyidle_waited_for_seconds_total{{{_rank(place)}, family="{family}"}}', _values(values, every)
    for place, values in case.get("late_steps", {}).items():
        yield f"whyidle_late_steps_total{{{_rank(place)}}}", _values(values, every)
    for place, phases in case.get("open", {}).items():
        for phase, values in phases.items():
            yield (
                f'whyidle_phase_open_seconds{{{_rank(place)}, {_place(place)}, phase="{phase}"}}',
                _values(values, every),
            )
    for name, values in case.get("series", {}).items():
        yield re.sub(r"@(\w+)", lambda found: _agent(found[1]), name), _values(values, every)


def _spent(place: str, causes: Mapping[str, float | str], every: int) -> Series:
    for cause, values in causes.items():
        family = CAUSE_FAMILY.get(cause, UNHOOKED_FAMILY)
        labels = f'{_rank(place)}, {_place(place)}, cause="{cause}", family="{family}"'
        yield f"whyidle_device_seconds_total{{{labels}}}", _values(values, every)


def _every(case: dict[str, Any]) -> int:
    return case.get("every", 15)


def _values(values: float | str, every: int) -> str:
    return values if isinstance(values, str) else f"0+{every * values!r}x{SAMPLES}"


def _agent(node: str) -> str:
    return f'job="whyidle", instance="{node}:9838"'


def _rank(place: str) -> str:
    """`run/rank@node`, or `@node` for a device that no rank uses."""
    who, _, node = place.partition("@")
    run, _, rank = who.partition("/")
    owner, _, run = run.rpartition(":")
    of = f'owner="{owner}", ' if owner else ""
    return f'{_agent(node)}, {of}run="{run}", rank="{rank}"' if who else _agent(node)


def _place(place: str) -> str:
    who, _, node = place.partition("@")
    return f'node="{node}", device="cuda:{who.partition("/")[2] or 7}"'
