"""Runs promtool on rules, and finds which rules an expression needs."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from support_promql import NAMED_BY_PATTERN

from whyidle.alerts.rule import Alert, Group, Record

RECORDED = re.compile(r"[a-z_]+:whyidle_\w+:\w+")
_LITTLE_COLLECTION = {"GOGC": "1000"}
"""With Go's default, promtool spends up to half of its time on garbage collection."""


def run_tests(paths: Sequence[str | Path], directory: Path) -> subprocess.CompletedProcess[str]:
    """Lets one promtool run test files of rules."""
    return subprocess.run(
        ["promtool", "test", "rules", *map(str, paths)],
        cwd=directory,
        env={**os.environ, **_LITTLE_COLLECTION},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@functools.cache
def lenient() -> dict[str, bool]:
    """The setting of a test file that allows the last digit of a result to differ, if promtool knows it.

    Since Prometheus 3, rates differ by that much where a sample is exactly on the left edge of a range.
    """
    done = subprocess.run(["promtool", "--version"], capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r"version (\d+)\.", done.stdout + done.stderr)
    assert found, done.stdout + done.stderr
    return {"fuzzy_compare": True} if int(found[1]) >= 3 else {}


def needed(groups: Iterable[Group], expressions: Iterable[str]) -> list[Group]:
    """The groups with the alerts, and only those recording rules whose series the alerts or expressions use, directly
    or through other rules. The others do not change the results, and cost as much to evaluate."""
    given = list(groups)
    asked = [*expressions, *(text for group in given for rule in group.rules for text in _texts_of_alert(rule))]
    by_name: dict[str, list[Record]] = {}
    for group in given:
        for rule in group.rules:
            if isinstance(rule, Record):
                by_name.setdefault(rule.name, []).append(rule)
    used: set[str] = set()
    while asked:
        for name in _names(asked.pop(), by_name) - used:
            used.add(name)
            asked += [rule.expr for rule in by_name.get(name, ())]
    found = [
        replace(group, rules=tuple(rule for rule in group.rules if isinstance(rule, Alert) or rule.name in used))
        for group in given
    ]
    return [group for group in found if group.rules]


def _names(text: str, recorded: Iterable[str]) -> set[str]:
    """The names of recorded series, written in full or as a pattern."""
    patterns = NAMED_BY_PATTERN.findall(text)
    return {*RECORDED.findall(text), *(name for name in recorded for one in patterns if re.fullmatch(one, name))}


def _texts_of_alert(rule: Record | Alert) -> tuple[str, ...]:
    return (rule.expr, rule.summary, rule.description) if isinstance(rule, Alert) else ()
