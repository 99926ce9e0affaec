"""Which long tests run next: those whose last run is longest ago, for about as long as is asked.

`RECORD` says of each long test when it last ran, how it ended, and how long it took. It is part of the repository, so
that the commit decides what runs: whoever runs `make test-long` before a change lands commits the new record with the
change. If a change has landed without it, the next one runs the tests that come after those.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

RECORD = Path("tests", "long_tests.json")
LONG_KEY = "whyidle/long"
"""Where pytest's cache has, for each long test that ran, how it ended and how many seconds it took."""
KNOWN_WRONG = "known to be wrong"
"""How a test ends that is expected to fail, even if it passes once."""
UNKNOWN_SECONDS = 30.0
"""How long a test is expected to take that has never run."""
_GROUP = re.compile(r"@[\w -]+$")
BESIDE = 2
"""How many tests that may run beside each other take the time of one."""


class Test(NamedTuple):
    """A long test. ``name`` is as pytest writes it."""

    name: str
    alone: bool


class Last(NamedTuple):
    """The last run of a long test."""

    date: str
    outcome: str
    seconds: float


NEVER = Last("", "never run", UNKNOWN_SECONDS)


def read(path: Path = RECORD) -> dict[str, Last]:
    """The record; empty if there is none."""
    try:
        return {name: Last(*last) for name, last in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}


def write(record: Mapping[str, Last], path: Path = RECORD) -> None:
    """One line for each test, so that two changes of the record seldom touch the same line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(last)}" for name, last in sorted(record.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def choose(tests: Iterable[Test], record: Mapping[str, Last], seconds: float) -> list[Test]:
    """The tests that take about ``seconds`` together, at least one: first what failed, for at most half of the time, so
    that all others have their turn; then what ran longest ago."""
    ordered = sorted(tests, key=lambda test: (record.get(test.name, NEVER).date, test.name))
    failed = [test for test in ordered if record.get(test.name, NEVER).outcome == "failed"]
    again = _first(failed, record, seconds / 2, least=0)
    left = seconds - sum(_expected(test, record) for test in again)
    return again + _first((test for test in ordered if test not in again), record, left, least=0 if again else 1)


def _first(tests: Iterable[Test], record: Mapping[str, Last], seconds: float, least: int) -> list[Test]:
    chosen: list[Test] = []
    for test in tests:
        expected = _expected(test, record)
        if len(chosen) >= least and expected > seconds:
            break
        seconds -= expected
        chosen.append(test)
    return chosen


def _expected(test: Test, record: Mapping[str, Last]) -> float:
    return record.get(test.name, NEVER).seconds / (1 if test.alone else BESIDE)


def commits(path: Path = RECORD) -> int:
    """How many commits of this branch came after the last one that changed the record; 0 without a repository."""
    last = _git("log", "-1", "--format=%H", "--", str(path))
    return int(_git("rev-list", "--count", "--first-parent", f"{last}..HEAD") or 0) if last else 0


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()


def after(commits: int, tests: Sequence[Test], record: Mapping[str, Last], seconds: float) -> dict[str, Last]:
    """The record as if each of these ``commits`` had run its tests, which passed."""
    found = dict(record)
    for number in range(commits):
        for test in choose(tests, found, seconds):
            found[test.name] = found.get(test.name, NEVER)._replace(date=f"~{number:06}")  # later than all dates
    return found


def merged(
    tests: Iterable[Test], record: Mapping[str, Last], ran: Mapping[str, tuple[str, float]], date: str
) -> dict[str, Last]:
    """The record after a run. Tests that do not exist any more are left out.

    Files without any of ``tests`` are in another folder than those that were looked for.
    """
    new = {name: Last(date, outcome, round(seconds, 1)) for name, (outcome, seconds) in ran.items()}
    found = {test.name: new.get(test.name) or record.get(test.name, NEVER) for test in tests}
    files = {_file(name) for name in found}
    others = {name: last for name, last in record.items() if _file(name) not in files and Path(_file(name)).exists()}
    return {**others, **found}


def _file(name: str) -> str:
    return name.partition("::")[0]


def summary(record: Mapping[str, Last]) -> list[str]:
    """When the long tests last ran and how they ended, a line for each file, and one for each that did not pass."""
    files: dict[str, list[Last]] = {}
    for name, last in record.items():
        files.setdefault(_file(name), []).append(last)
    lines = []
    for file, runs in sorted(files.items()):
        dates = sorted(last.date or "never" for last in runs)
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        ends = [last.outcome for last in runs]
        counts = ", ".join(f"{ends.count(end)} {end}" for end in sorted(set(ends)))
        lines.append(f"{file}: {counts} ({when})")
    return [*lines, *(f"FAILED {last.date}: {name}" for name, last in record.items() if last.outcome == "failed")]


def today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")


def collect(words: Sequence[str]) -> list[Test]:
    """All long tests below the folders ``words``. Raises SystemExit if pytest cannot collect them."""
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return [Test(*test) for test in json.loads(done.stdout.splitlines()[-1])]


def without_group(name: str) -> str:
    """The name of a test without what pytest-xdist appends to it."""
    return _GROUP.sub("", name)


def watch(config: pytest.Config) -> None:
    """Notes how long tests end. With pytest-xdist, the process that distributes the tests does so."""
    cache = getattr(config, "cache", None)  # there is none with `-p no:cacheprovider`
    if cache is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Ends(cache))


class _Ends:
    def __init__(self, cache: pytest.Cache):
        self._cache = cache
        self._ends: dict[str, tuple[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "long" in report.keywords:
            name = without_group(report.nodeid)
            before, seconds = self._ends.get(name, ("passed", 0.0))
            outcome = KNOWN_WRONG if hasattr(report, "wasxfail") else report.outcome
            self._ends[name] = outcome if before == "passed" else before, seconds + report.duration

    def pytest_sessionfinish(self) -> None:
        self._cache.set(LONG_KEY, self._ends)


class _Collected:
    def __init__(self) -> None:
        self.tests: list[Test] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = [Test(item.nodeid, item.get_closest_marker("alone") is not None) for item in session.items]


if __name__ == "__main__":
    collected = _Collected()
    status = pytest.main(["--collect-only", "-qq", "-m", "long", *sys.argv[1:]], plugins=[collected])
    print(json.dumps(collected.tests))
    sys.exit(0 if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else status)
