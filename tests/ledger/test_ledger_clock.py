"""Times are right for the reader, whatever clock the rank used: in a time namespace, or after a reboot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import support_uptime
from support_ledgers import DEADLINE_SECONDS, SECOND, Child, Spec, children, ended, sealed
from support_uptime import since_start

from whyidle.agent.files import Roots
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.parsers import pidstat
from whyidle.agent.processes.rank_processes import RankProcesses
from whyidle.ledger.clock import own_clock, parse_offsets, signed_ticks
from whyidle.ledger.directory import read_directory, reap
from whyidle.ledger.layout import STRING_AT
from whyidle.ledger.reader import Ledger, read_ledger
from whyidle.torch_hooks.identity import identify
from whyidle.torch_hooks.restart import own_ledgers, restart_of
from whyidle.verdict.hang import open_seconds
from whyidle.verdict.report import build_report

pytestmark = pytest.mark.ages

DAY = 86400.0
OTHER_BOOT = "0f3a1c5e-0000-4000-8000-feedfeedfeed"
STEP = {"compute": 0.05, "network": 0.01}
CLOCKS = {
    "the reader's": Spec(),
    "a time namespace that is ahead": Spec(ahead=300 * DAY),
    "a time namespace that is behind": Spec(ahead=-300 * DAY),
    "an earlier start of the machine, which was up for longer": Spec(ahead=300 * DAY, boot=OTHER_BOOT),
    "an earlier start of the machine, which was up for less": Spec(ahead=-300 * DAY, boot=OTHER_BOOT),
}


@pytest.fixture(params=CLOCKS.values(), ids=list(CLOCKS))
def clock(request: pytest.FixtureRequest) -> Spec:
    return request.param


def of(clock: Spec, **fields: Any) -> Spec:
    return Spec(ahead=clock.ahead, boot=clock.boot, **fields)


def look(directory: Path) -> Ledger:
    ledgers, problems = read_directory(str(directory), steps=True)
    assert not problems
    [ledger] = ledgers
    return ledger


def test_moments_are_on_the_readers_clock(tmp_path: Path, clock: Spec) -> None:
    ended(tmp_path, of(clock, steps=5, step=STEP, startup=3.0, idle=1000.0))
    ledger, now = look(tmp_path), time.monotonic_ns()
    assert 1000.0 <= ledger.ended_seconds < 1000.0 + DEADLINE_SECONDS
    assert 1003.3 * SECOND <= now - ledger.start_ns < (1003.3 + DEADLINE_SECONDS) * SECOND
    assert ledger.until_ns - ledger.window_ns == pytest.approx(0.3 * SECOND)
    assert ledger.ring[-1].end_ns == ledger.until_ns == ledger.phase_since_ns


def test_a_rank_without_a_step_has_no_window_on_any_clock(tmp_path: Path, clock: Spec) -> None:
    ended(tmp_path, of(clock, idle=1000.0, words={"accounted_ns": 0}))
    ledger = look(tmp_path)
    assert (ledger.window_ns, ledger.accounted_ns) == (0, 0)
    assert ledger.until_ns == ledger.phase_since_ns


def test_retention_and_removal_use_the_age_of_a_ledger(tmp_path: Path, clock: Spec) -> None:
    ended(tmp_path, of(clock, run="old", idle=2 * DAY), of(clock, run="young", idle=DAY / 2))
    assert [rank.newest.run for rank in LedgerStore(str(tmp_path), 600.0).look().ranks] == []
    assert [rank.newest.run for rank in LedgerStore(str(tmp_path), DAY).look().ranks] == ["young"]
    assert reap(str(tmp_path), DAY) == 1
    assert look(tmp_path).run == "young"


def test_open_seconds_of_a_rank_do_not_depend_on_the_clock(tmp_path: Path, clock: Spec) -> None:
    with children(tmp_path, of(clock, phase="collective", idle=20.0)):
        [rank] = LedgerStore(str(tmp_path), 600.0).look().ranks
        assert 20.0 <= open_seconds(rank.newest, time.monotonic_ns()) < 20.0 + DEADLINE_SECONDS


def test_a_report_adds_up_on_any_clock(tmp_path: Path, clock: Spec) -> None:
    ended(tmp_path, of(clock, steps=100, step=STEP, startup=3.0, idle=1000.0))
    report = build_report(("lab", "r1"), [look(tmp_path)], time.monotonic_ns())
    assert report["wall_seconds"] == pytest.approx(6.0)
    assert report["startup_seconds"] == pytest.approx(3.0)
    assert report["unaccounted_seconds"] == pytest.approx(0.0, abs=1e-9)


def test_a_restart_continues_from_any_clock(tmp_path: Path, clock: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYIDLE_RUN", "r1")
    monkeypatch.setenv("WHYIDLE_OWNER", "lab")
    ended(tmp_path, of(clock, steps=30, step=STEP, idle=1000.0, words={"checkpoint_step": 20}))
    assert restart_of(own_ledgers(str(tmp_path)), identify())[:4] == (1, 30, 20, True)


@pytest.mark.parametrize(
    ("seconds", "by_wall", "began_later", "said"),
    [
        (7200.0, 7200.0, 0.0, 1),
        (0.3, 0.3, 0.0, 0),
        (0.0, 0.0, 3592.0, 0),  # a notebook attaches a second time
        (7200.0, 7200.0, 3592.0, 0),
        (0.0, 7200.0, 0.0, 0),  # somebody has set the wall clock
    ],
)
def test_a_machine_that_was_suspended_is_named_if_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, by_wall: float, began_later: float, said: int
) -> None:
    """Its clock stood still, so that no sum has this time."""
    with children(tmp_path, Spec(steps=50, step={"compute": 0.1})):
        [ledger] = read_directory(str(tmp_path), steps=True)[0]
        before = ledger.pid_start_ticks * SECOND // os.sysconf("SC_CLK_TCK") - ledger.start_ns
        ledger.words["start_ns"] = (ledger.start_ns + round(began_later * SECOND),)
        created_ns = time.time_ns() - (time.monotonic_ns() - ledger.created_ns)
        ledger.words["created_unix_ns"] = (created_ns - round(by_wall * SECOND),)
        monkeypatch.setattr("whyidle.ledger.reader.asleep_ns", lambda: before + round(seconds * SECOND))
        remarks = build_report(("lab", "r1"), [ledger], time.monotonic_ns())["remarks"]
        expected = ["the machine n1 was suspended for 7200 s since its ranks began: that is in none of these times"]
        assert [one for one in cast(list[str], remarks) if "suspended" in one] == expected[:said]
        ledger.alive = False  # nobody knows whether it was before its end
        assert not ledger.machine_suspended_ns


def test_no_moment_is_in_the_future_after_the_wall_clock_was_set_back(tmp_path: Path) -> None:
    tomorrow = time.time_ns() + int(DAY * SECOND)
    ended(tmp_path, Spec(created=tomorrow, ahead=300 * DAY, boot=OTHER_BOOT, steps=5, step=STEP))
    ledger = look(tmp_path)
    assert ledger.ended_seconds < DEADLINE_SECONDS
    assert ledger.until_ns - ledger.window_ns == pytest.approx(0.3 * SECOND)


def test_a_ledger_without_a_boot_id_counts_as_of_this_boot(tmp_path: Path) -> None:
    [path] = ended(tmp_path, Spec(idle=20.0, boot=OTHER_BOOT))
    raw = Path(path).read_bytes()
    at, size = STRING_AT["boot"]
    Path(path).write_bytes(sealed(raw[:at] + bytes(size) + raw[at + size :]))
    assert 20.0 <= look(tmp_path).ended_seconds < 20.0 + DEADLINE_SECONDS


@pytest.mark.parametrize("ticks", [0, 7, 10**11, -1, -150, -(10**11)])
def test_start_times_before_the_clocks_begin_are_negative(ticks: int) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    as_the_kernel_has_it = ticks * SECOND // hertz % (1 << 64) * hertz // SECOND
    assert signed_ticks(as_the_kernel_has_it) == pytest.approx(ticks, abs=1)


def test_reads_the_offsets_of_a_time_namespace() -> None:
    assert parse_offsets("monotonic       -1475         0\nboottime          86400 500000000\n") == (
        -1475 * SECOND,
        86400 * SECOND + SECOND // 2,
    )
    assert parse_offsets("") == parse_offsets("monotonic\nboottime one two\nnonsense") == (0, 0)


# -- real time namespaces


@pytest.fixture(params=[5.0, 100 * DAY], ids=["just started", "up for long"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Child]:
    """A live rank in a time namespace with another uptime. It has waited in a collective for 2 s."""
    spec = Spec(phase="collective", idle=2.0, startup=1.0)
    with children(tmp_path, spec, launcher=since_start(request.param)) as [child]:
        yield child


def test_a_live_rank_in_another_time_namespace_has_the_right_ages(elsewhere: Child, tmp_path: Path) -> None:
    ledger = read_ledger(elsewhere.path)
    assert ledger.alive
    assert ledger.words["clock_offsets_ns"] != own_clock()[1:]
    assert 2.0 <= ledger.idle_seconds < 2.0 + DEADLINE_SECONDS
    assert 3.0 * SECOND <= time.monotonic_ns() - ledger.start_ns < (3.0 + DEADLINE_SECONDS) * SECOND


def test_finds_the_process_of_a_rank_in_another_time_namespace(elsewhere: Child, tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), 600.0)
    store.look()
    [found] = RankProcesses(store, Roots()).look()
    assert found.pid == elsewhere.process.pid
    stat = pidstat.parse(Path(f"/proc/{found.pid}/stat").read_bytes())
    assert stat.start_ticks == found.ledger.pid_start_ticks


SAY_LEDGER = """
import json, sys
from whyidle.ledger.reader import read_ledger

ledger = read_ledger(sys.argv[1])
print(json.dumps([ledger.alive, ledger.idle_seconds, ledger.start_ns]))
"""


def test_a_reader_whose_clock_started_after_the_rank_has_the_right_ages(tmp_path: Path) -> None:
    with children(tmp_path, Spec(idle=1000.0, startup=1.0)) as [child]:
        words = since_start(5.0, sys.executable, "-c", SAY_LEDGER, child.path)
        alive, idle, start_ns = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    assert alive
    assert 1000.0 <= idle < 1000.0 + DEADLINE_SECONDS
    assert start_ns < -900 * SECOND


OLDER_THAN_ITS_CLOCK = """
import os, sys, time
from support_uptime import since_start

time.sleep(2)
words = since_start(0.0, sys.executable, "-c", sys.argv[1])
os.execvp(words[0], words)
"""
SAY_START = """
import time
from whyidle.torch_hooks.identity import process_start

print(*process_start(), time.monotonic_ns())
"""


def test_start_time_is_negative_for_a_process_older_than_its_clock() -> None:
    since_start(5.0)  # or skip
    words = [sys.executable, "-c", OLDER_THAN_ITS_CLOCK, SAY_START]
    env = {**os.environ, "PYTHONPATH": os.path.dirname(support_uptime.__file__)}
    began = time.monotonic_ns()
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True)
    ticks, start_ns, now_ns = map(int, done.stdout.split())
    assert start_ns < 0
    assert 2 * SECOND <= now_ns - start_ns <= time.monotonic_ns() - began + SECOND / 50
    assert ticks == pytest.approx(start_ns * os.sysconf("SC_CLK_TCK") / SECOND, abs=2)
