"""Which versions of other programs were tested: when, with which command, and how it ended.

    python tools/versions.py run COMMAND NAME=VERSION ... -- WORD ...   runs WORD ..., and records how its tests ended
    python tools/versions.py           writes the table of docs/limits.md
    python tools/versions.py --check   fails if the table is old, if a run failed, or if a claim has no run that passed

COMMAND is what a reader types to repeat the run. `Python=3.10.13,torch=2.4.1` is one row for two versions that ran
together. A package of Debian in `PROGRAMS` is a row for each program that tests really ran. A claim of support is:

- a classifier of Python in pyproject.toml, and the version of torch in constraints.txt,
- words such as "torch 2.4 or later" in README.md or on a page of docs/,
- each name in `CLAIMED`.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from long_tests import KNOWN_WRONG, without_group

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = Path("tests", "versions.json"), Path("docs", "limits.md")
OUTCOMES = "WHYIDLE_TEST_OUTCOMES"
"""The variable that names the file into which tests write how they ended."""

PROGRAMS = {
    "prometheus": {"Prometheus": ""},
    "promtool": {},
    "prometheus-alertmanager": {"Alertmanager": "alertmanager"},
    "victoria-metrics": {"VictoriaMetrics": "victoria-metrics", "vmalert": "vmalert"},
    "systemd": {"systemd": "test_deploy_node"},
    "slurmctld": {"Slurm": "test_a_job_is_recorded"},
    "helm": {"Helm's engine": "tests/helm/"},
}
"""Package -> its programs -> what the names of all tests contain that run it. promtool belongs to Prometheus."""
CLAIMED = ("Python", "torch", "torch for CUDA", *(name for programs in PROGRAMS.values() for name in programs))
NOT_RUN = {
    "Kubernetes": "schemas of 1.29, 1.33 and 1.37, and a simulated API server",
    "kubectl": "tests check that the objects exist that its commands on these pages name",
    "Grafana": "its SDK reads the dashboards, and its components draw them",
    "Docker": "tests start the services as Compose would",
}
"""What pages name and no test runs, and what is tested instead."""
_SAME = {"pytorch": "torch", "python3": "Python", **{name.lower(): name for name in (*CLAIMED, *NOT_RUN)}}
_OR_LATER = re.compile(rf"\b({'|'.join(map(re.escape, _SAME))})\W{{1,3}}(\d+(?:\.\d+)*) or later", re.IGNORECASE)
_PLACE = re.compile(r"(<!-- versions: begin -->\n).*?(<!-- versions: end -->)", re.DOTALL)


class Row(NamedTuple):
    """A run. ``of`` is a name and a version; several are separated by commas."""

    of: str
    date: str
    command: str
    passed: int
    failed: int
    skipped: int
    wrong: int = 0

    @property
    def versions(self) -> dict[str, str]:
        return dict(each.rsplit(" ", 1) for each in self.of.split(", "))

    @property
    def ok(self) -> bool:
        return self.passed > 0 and not self.failed

    @property
    def result(self) -> str:
        counts = (
            (self.failed, "**failed**"),
            (self.passed, "passed"),
            (self.skipped, "skipped"),
            (self.wrong, KNOWN_WRONG),
        )
        return ", ".join(f"{count} {end}" for count, end in counts if count) or "**no test ran**"


# -- the record


def read(root: Path) -> list[Row]:
    return [Row(*row) for row in json.loads((root / RECORD).read_text())] if (root / RECORD).exists() else []


def write(rows: Iterable[Row], root: Path) -> None:
    """One line for each row, so that two changes of the record seldom touch the same line."""
    (root / RECORD).write_text("[\n" + ",\n".join(f"  {json.dumps(row)}" for row in sorted(rows)) + "\n]\n")


def merged(old: Iterable[Row], new: Sequence[Row]) -> list[Row]:
    """New rows replace those of the same versions, and those that the same command gave for other versions.

    A command with fewer tests replaces nothing if it passed: `PROMETHEUS_TESTS=tests/alerts` is less than all.
    """
    old = list(old)

    def less(new: Row) -> bool:
        whole = (row for row in old if row.of == new.of and row.command != new.command)
        return new.ok and any(row.passed + row.failed > new.passed for row in whole)

    new = [row for row in new if not less(row)]

    def replaced(row: Row) -> bool:
        return any(row.of == one.of or kind(row) == kind(one) for one in new)

    def kind(row: Row) -> tuple[str, list[str], str]:
        python = row.versions.get("Python", "").split(".")[:2]  # a command may run in several
        return row.command, [*row.versions], ".".join(python)

    return [*(row for row in old if not replaced(row)), *new]


def rows(words: Iterable[str], command: str, status: int, ends: Mapping[str, str]) -> list[Row]:
    """A row for each of ``words`` whose tests ran. If the command failed and no test did, all rows count a failure."""
    if status == 0:  # what failed was not judged: others used the cores
        ends = {name: "skipped" if end == "failed" else end for name, end in ends.items()}
    broken = int(status != 0 and "failed" not in ends.values())
    date, found = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), []
    for word in words:
        package, _, version = word.partition("=")
        upstream = re.sub(r"^\d+:|[^\d.].*$", "", version)
        programs = {f"{name} {upstream}": part for name, part in PROGRAMS.get(package, {}).items()}
        for of, part in programs.items() if package in PROGRAMS else [(word.replace("=", " ").replace(",", ", "), "")]:
            own = [end for name, end in ends.items() if part in name]
            passed, skipped, known = map(own.count, ("passed", "skipped", "wrong"))
            row = Row(of, date, command, passed, own.count("failed") or broken, skipped, known)
            if row.passed or row.failed:
                found.append(row)
    return found


# -- how tests end


def watch(config: pytest.Config) -> None:
    """Notes how tests end, if this tool runs them. With pytest-xdist, the process that distributes them does so."""
    path = os.environ.get(OUTCOMES)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Ends(Path(path)))


class _Ends:
    def __init__(self, path: Path):
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            with open(self._path, "a") as file:
                outcome = "wrong" if hasattr(report, "wasxfail") else report.outcome
                file.write(f"{outcome} {without_group(report.nodeid)}\n")


def run(words: Sequence[str], root: Path) -> int:
    """Runs a command -> its exit status."""
    end = words.index("--")
    with tempfile.NamedTemporaryFile("r") as file:
        status = subprocess.run(words[end + 1 :], env={**os.environ, OUTCOMES: file.name}, check=False).returncode
        # A test that ran again has several lines. The last one counts.
        ends = {name: outcome for outcome, _, name in (line.rstrip("\n").partition(" ") for line in file)}
    new = rows(words[1:end], words[0], status, ends)
    write(merged(read(root), new), root)
    (root / PAGE).write_text(filled(root))
    print("".join(f"{row.of}: {row.result}\n" for row in new), end="", flush=True)
    return status


# -- the table and the claims


def table(record: Iterable[Row]) -> str:
    lines = ["| version | tests | date | command |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.of} | {row.result} | {row.date} | `{row.command}` |" for row in record]
    lines += [f"| {name} | not run: {instead} | | |" for name, instead in NOT_RUN.items()]
    return "\n".join(lines) + "\n"


def filled(root: Path) -> str:
    """The page with the table."""
    made = table(read(root))
    text, places = _PLACE.subn(lambda place: f"{place[1]}{made}{place[2]}", (root / PAGE).read_text())
    if places != 1:
        raise ValueError(f"{PAGE}: there must be one place for the table, there are {places}")
    return text


def claims(root: Path) -> Iterator[tuple[str, str, str]]:
    """Where it is claimed, a name, and the version, which is empty for a name alone."""
    yield from (("tools/versions.py", name, "") for name in CLAIMED)
    places: list[tuple[str, Callable[[str], list[tuple[str, str]]]]] = [
        ("pyproject.toml", re.compile(r'"Programming Language :: (Python) :: (3\.\d+)"').findall),
        ("constraints.txt", re.compile(r"(?m)^(torch)==(\S+)$").findall),
        *((str(page.relative_to(root)), _OR_LATER.findall) for page in [root / "README.md", *root.glob("docs/*.md")]),
    ]
    for path, find in places:
        for name, version in find((root / path).read_text()):
            yield path, _SAME[name.lower()], version


def wrong(root: Path) -> Iterator[str]:
    record = read(root)
    for row in record:
        if not row.ok:
            yield f"{RECORD}: {row.of}: {row.result} of `{row.command}`: repair it, or remove the row and its claim"
    # A dot at the end: 3.1 is not claimed by a run of 3.10.
    passed = [(name, f"{ran.partition('+')[0]}.") for row in record if row.ok for name, ran in row.versions.items()]
    for where, name, version in sorted(set(claims(root))):
        if not any(name == other and ran.startswith(version and f"{version}.") for other, ran in passed):
            yield f"{where}: claims {name} {version}".rstrip() + f", but no run of it in {RECORD} passed"


def main(words: Sequence[str], root: Path = ROOT) -> int:
    if words and words[0] == "run":
        return run(words[1:], root)
    if "--check" not in words:
        (root / PAGE).write_text(filled(root))
        return 0
    errors = list(wrong(root))
    if filled(root) != (root / PAGE).read_text():
        errors.append(f"{PAGE} differs from {RECORD}: run `make docs`")
    print("".join(f"{error}\n" for error in errors), end="", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
