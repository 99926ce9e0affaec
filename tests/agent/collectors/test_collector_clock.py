"""The clock: what the kernel reports about its synchronisation."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_node import clock, kernel
from hypothesis import given
from hypothesis import strategies as st
from support_exporter import node_exporter
from support_matrix import FAULTS, Anew, check, read

from whyidle.agent.collector import Collector, Options
from whyidle.agent.collectors.clock import create
from whyidle.agent.files import Roots, Unreadable
from whyidle.agent.kernel.adjtimex import adjtimex
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.metrics.clock import METRICS
from whyidle.agent.parsers.timex import BYTES, timex

CLOCK = "whyidle_clock_"
needs_compiler = pytest.mark.skipif(not kernel.COMPILER, reason="needs a C compiler: a kernel that is scripted")


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    found = Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path / "root"))
    clock.build(found)
    return found


def collector(roots: Roots) -> Collector:
    return create(Options(LedgerStore("/nonexistent", 1), roots))


@needs_compiler
def test_exports_a_synchronised_clock(roots: Roots, tmp_path: Path) -> None:
    kernel.write(tmp_path / "kernel", clock.SCRIPT)
    before = time.time()
    with kernel.scraper("clock", roots, tmp_path / "kernel") as scrape:
        series, errors, blind = scrape()
    assert before <= series.pop((f"{CLOCK}time_seconds",)) <= time.time()
    assert series == {
        (f"{CLOCK}synchronised",): 1,
        (f"{CLOCK}offset_seconds",): -0.000183421,
        (f"{CLOCK}estimated_error_seconds",): 0.000212,
        (f"{CLOCK}maximum_error_seconds",): 0.0615,
        (f"{CLOCK}frequency_ratio",): 0.99998,
        (f"{CLOCK}tai_offset_seconds",): 37,
        (f"{CLOCK}info", "tsc"): 1,
    }
    assert len(series) + 1 == len(METRICS)
    assert not errors + blind


@needs_compiler
@pytest.mark.parametrize(
    ("fields", "synchronised", "offset"),
    [
        ({"status": 0x2001, "offset": 5_000_000}, 1, 0.005),  # STA_NANO
        ({"status": 0x0001, "offset": 5_000_000}, 1, 5.0),
        ({"status": 0x0041, "offset": 0}, 0, 0.0),  # STA_UNSYNC
        ({"status": 0x0001, "offset": 0, "state": 5}, 0, 0.0),  # TIME_ERROR
        ({"status": 0x0011, "offset": 0, "state": 1}, 1, 0.0),  # a leap second is due
    ],
)
def test_what_status_and_state_mean(
    roots: Roots, tmp_path: Path, fields: dict[str, int], synchronised: int, offset: float
) -> None:
    kernel.write(tmp_path / "kernel", kernel.timex(**fields))
    with kernel.scraper("clock", roots, tmp_path / "kernel") as scrape:
        series, _, _ = scrape()
    assert series[(f"{CLOCK}synchronised",)] == synchronised
    assert series[(f"{CLOCK}offset_seconds",)] == offset


@needs_compiler
def test_a_failed_call_affects_only_the_discipline(roots: Roots, tmp_path: Path) -> None:
    script = tmp_path / "kernel"
    kernel.write(script, clock.SCRIPT)
    with kernel.scraper("clock", roots, script) as scrape:
        sound, _, _ = scrape()
        for code in (errno.EPERM, errno.ENOSYS, errno.EFAULT):
            kernel.write(script, kernel.timex(errno=code))
            series, errors, blind = scrape()
            assert set(series) == {(f"{CLOCK}time_seconds",), (f"{CLOCK}info", "tsc")}
            if code == errno.EPERM:
                assert not errors
                assert blind[0][0] == "whether the clock is synchronised"
            else:
                assert errors == [("", "adjtimex", "io")]
                assert not blind
        kernel.write(script, clock.SCRIPT)
        assert scrape()[0].keys() == sound.keys()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_clock_source_affects_only_itself(roots: Roots, fault: str) -> None:
    def make() -> Collector:
        return Anew(lambda: collector(roots)) if fault in ("missing", "EINVAL") else collector(roots)

    folder = Path(roots.sysfs, "devices/system/clocksource/clocksource0")
    for name in ("current_clocksource", "available_clocksource"):
        held = {"current_clocksource": (f"{CLOCK}info", ("tsc",))}.get(name)
        check(
            make,
            folder / name,
            fault,
            lambda series, held=held: series == held,
            varies=lambda series: series[0] in (f"{CLOCK}time_seconds", f"{CLOCK}maximum_error_seconds"),
            comes=lambda series: fault == "garbage" and series[0] == f"{CLOCK}info",
            counted=held is not None and fault not in ("missing", "garbage"),
        )


def test_struct_has_the_size_of_the_kernels() -> None:
    assert ctypes.sizeof(ctypes.c_long) == 8
    assert BYTES == 208
    state, data = adjtimex()
    assert 0 <= state <= 5
    assert timex(state, data).maximum_error_us >= 0


@pytest.mark.skipif(not shutil.which("prometheus-node-exporter"), reason="needs prometheus-node-exporter")
def test_agrees_with_node_exporter() -> None:
    with node_exporter("timex") as theirs:
        before = theirs()
        ours, errors = read(create(Options(LedgerStore("/nonexistent", 1))))
        after = theirs()
    assert not errors
    for name, key in {
        "synchronised": "node_timex_sync_status",
        "offset_seconds": "node_timex_offset_seconds",
        "estimated_error_seconds": "node_timex_estimated_error_seconds",
        "maximum_error_seconds": "node_timex_maxerror_seconds",
        "frequency_ratio": "node_timex_frequency_adjustment_ratio",
        "tai_offset_seconds": "node_timex_tai_offset_seconds",
    }.items():
        value = ours[CLOCK + name, ()]
        assert isinstance(value, int | float)
        low, high = sorted((before[key, ()], after[key, ()]))
        assert low <= value <= high or value == pytest.approx(low, rel=1e-9)


ANYBODY = "import os; from whyidle.agent.kernel.adjtimex import adjtimex; os.setuid(65534); adjtimex()"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become nobody")
def test_asking_needs_no_privilege() -> None:
    subprocess.run([sys.executable, "-c", ANYBODY], check=True, timeout=60)


@given(st.integers(), st.binary(max_size=300) | st.binary(min_size=BYTES, max_size=BYTES))
def test_garbage_raises_only_unreadable(state: int, data: bytes) -> None:
    try:
        assert timex(state, data).synchronised in (True, False)
    except Unreadable:
        assert len(data) != BYTES
