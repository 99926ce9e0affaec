"""Real bottlenecks: a training over two nodes on a machine with real disturbances, and the conclusions.

Real agents export the data, and a real Prometheus records it with the rules of `whyidle rules`. A false confirmation is
worse than none, so signals that must be absent are checked too. Needs root and twenty minutes of a machine without
other work, because its disks and CPUs are evidence: only with WHYIDLE_TEST_BOTTLENECKS=1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from _pytest.capture import CaptureManager
from support_bottlenecks import FAMILIES, HEADINGS, Case, Lab, Observed, lab
from support_bottlenecks_disks import missing as missing_disks
from support_bottlenecks_faults import CASES, CONFIRMED
from support_bottlenecks_nodes import missing as missing_nodes
from support_prometheus import FAMILY_ALERT, PROMETHEUS

ASKED = os.environ.get("WHYIDLE_TEST_BOTTLENECKS")
SHARED = {"cpu"}
"""The ranks compute on the machine's few CPUs, so signals of CPUs may appear for every disturbance."""

pytestmark = [
    pytest.mark.skipif(not ASKED, reason="takes twenty minutes: only with WHYIDLE_TEST_BOTTLENECKS=1"),
    pytest.mark.skipif(not PROMETHEUS, reason="needs prometheus, of the Debian package of that name"),
    pytest.mark.xdist_group("machine"),
    pytest.mark.timeout(600),
]


@dataclass
class Seen:
    """The cases that tests ask for, each run once."""

    lab: Lab
    observed: dict[str, Observed] = field(default_factory=dict)

    def __getitem__(self, case: Case) -> Observed:
        if case.name not in self.observed:
            self.observed[case.name] = self.lab.observe(case)
        return self.observed[case.name]

    def table(self) -> str:
        rows = [HEADINGS, *(observed.row for observed in self.observed.values())]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Seen]:
    if lacks := missing_disks() or missing_nodes():
        pytest.skip(lacks)
    with lab(tmp_path_factory.mktemp("bottlenecks")) as running:
        found = Seen(running)
        yield found
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert isinstance(capture, CaptureManager)
    with capture.global_and_fixture_disabled():
        print(f"\n{found.table()}", file=sys.stderr)


each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each
def test_the_verdict_names_what_is_slow(seen: Seen, case: Case) -> None:
    """In Prometheus, and in `whyidle report` on the same ledgers."""
    observed = seen[case]
    assert observed.verdict.labels["family"] == case.family, observed.charged
    assert observed.report["verdict"]["family"] == case.family, observed.report["verdict"]
    assert observed.report["ranks"] == len(seen.lab.nodes)


@each
def test_confirms_the_verdict_only_if_a_counter_agrees(seen: Seen, case: Case) -> None:
    assert seen[case].verdict.labels["corroboration"] == case.corroboration, seen[case].signals


@each
def test_active_signals_are_those_of_the_slow_part(seen: Seen, case: Case) -> None:
    signals = seen[case].signals
    silent = set(FAMILIES) - SHARED - ({case.family} if case.corroboration == CONFIRMED else set())
    assert {family: signals[family] for family in silent if signals[family]} == {}
    assert case.signals <= signals.get(case.family, set())
    assert not case.deaf & signals.get(case.family, set())


@each
def test_only_the_alert_on_that_family_fires(seen: Seen, case: Case) -> None:
    firing = {name for name in seen[case].firing if name.startswith(FAMILY_ALERT)}
    assert firing == ({case.alert} if case.alert else set()), seen[case].charged
