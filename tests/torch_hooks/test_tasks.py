"""How a wait is split by what another task did meanwhile: a table of readings, and the real clocks of a real child."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from whyidle.ledger.causes import CAUSE, CAUSES
from whyidle.torch_hooks.splits import shares, split_data_wait, split_handoff, split_save
from whyidle.torch_hooks.tasks import CpuTimes, OwnTask, TaskClock, WorkerClock

MS = 1_000_000
NOTHING = CpuTimes(0, 0, 0)
NAMES = ("handoff", "cpu", "queue", "read")

# What the worker got during a wait of 100 ms, this thread's own work on the batch, and how long helpers of the worker
# waited for a CPU -> the split of the wait, ms
WAITS = {
    "it slept": (CpuTimes(0, 0, 0), 0, 0, {"data_read": 100}),
    "it computed": (CpuTimes(98 * MS, 0, 98 * MS), 0, 0, {"data_cpu": 98, "data_read": 2}),
    "it queued for a CPU": (CpuTimes(25 * MS, 75 * MS, 25 * MS), 0, 0, {"data_cpu": 25, "data_queue": 75}),
    "helper threads computed": (CpuTimes(2 * MS, 0, 90 * MS), 0, 0, {"data_cpu": 90, "data_read": 10}),
    "more threads than cores": (CpuTimes(2 * MS, 0, 30 * MS), 0, 70 * MS, {"data_cpu": 30, "data_queue": 70}),
    "the sending thread queued while it read": (
        CpuTimes(2 * MS, 0, 3 * MS),
        0,
        50 * MS,
        {"data_cpu": 3, "data_queue": 4, "data_read": 93},
    ),
    "unpickled here": (CpuTimes(0, 0, 0), 60 * MS, 0, {"data_handoff": 60, "data_read": 40}),
    "readings lag behind and exceed the wait": (CpuTimes(104 * MS, 3 * MS, 104 * MS), 0, 0, {"data_cpu": 100}),
    "a clock that went back": (CpuTimes(-5 * MS, -5 * MS, -5 * MS), -MS, 0, {"data_read": 100}),
}


def charged(parts: tuple[tuple[int, int], ...] | None, wall: int = 100 * MS) -> dict[str, int]:
    """The split of Books.charge, in ms."""
    assert parts is not None
    spent: dict[str, int] = {}
    rest = wall
    for cause, ns in parts:
        ns = rest if ns < 0 else min(ns, rest)
        rest -= ns
        if ns:
            spent[CAUSES[cause]] = spent.get(CAUSES[cause], 0) + ns // MS
    return spent


@pytest.mark.parametrize(("after", "handoff", "helpers", "expected"), WAITS.values(), ids=WAITS.keys())
def test_splits_a_wait_for_a_worker(after: CpuTimes, handoff: int, helpers: int, expected: dict[str, int]) -> None:
    assert charged(split_data_wait(NOTHING, after, handoff, helpers)) == expected


def test_a_worker_that_cannot_be_read_is_not_guessed_at() -> None:
    assert split_data_wait(None, NOTHING, 0) is None
    assert split_data_wait(NOTHING, None, 0) is None


def test_splits_a_wait_for_a_batch_on_its_way() -> None:
    assert charged(split_handoff(100 * MS, 5 * MS, 0, 30 * MS, 0)) == {"data_queue": 30, "data_handoff": 70}
    # The main thread makes the next batch for nearly all of the time.
    assert charged(split_handoff(100 * MS, 5 * MS, 90 * MS, 30 * MS, 2 * MS)) == {
        "data_handoff": 5,
        "data_cpu": 90,
        "data_queue": 5,
    }


@pytest.mark.parametrize(("senders", "rest"), [(1, "data_read"), (900, "data_handoff")])
def test_a_worker_that_does_nothing_for_long_is_blocked(senders: int, rest: str) -> None:
    """It holds Python's lock in a call, or is stopped."""
    assert charged(split_handoff(4000 * MS, 10 * MS, 0, 0, senders * MS), 4000 * MS)[rest] >= 3990


def test_shares_are_clamped_to_the_wait() -> None:
    parts = ((CAUSE["data_handoff"], 10 * MS), (CAUSE["data_cpu"], 70 * MS), (CAUSE["data_queue"], 40 * MS))
    told = shares((*parts, (CAUSE["data_read"], -1)), 100 * MS)
    assert told == tuple(
        (CAUSE[f"data_{name}"], share) for name, share in zip(NAMES, (0.1, 0.7, 0.2, 0.0), strict=True)
    )


def test_splits_a_save() -> None:
    assert charged(split_save(100 * MS, 30 * MS, 10 * MS, 0)) == {"checkpoint_cpu": 40, "checkpoint_write": 60}


def test_a_thread_that_a_save_waits_for_computes_for_it() -> None:
    assert charged(split_save(100 * MS, 30 * MS, 10 * MS, 25 * MS)) == {"checkpoint_cpu": 65, "checkpoint_write": 35}
    assert charged(split_save(100 * MS, 30 * MS, 10 * MS, 900 * MS)) == {"checkpoint_cpu": 100}


def spend(code: str, read: Callable[[int], CpuTimes | None]) -> tuple[CpuTimes, CpuTimes]:
    """The readings of a child before and after it runs ``code`` between two lines of its output."""
    script = f"import time, threading\nprint(flush=True); input()\n{code}\nprint(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        before = read(child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        after = read(child.pid)
        child.stdin.write("\n")
    assert before is not None
    assert after is not None
    return before, after


BURN = "end = time.thread_time() + 0.2\nwhile time.thread_time() < end: sum(range(100))"
TICK = 10 * MS


def test_reads_the_cpu_time_of_another_process() -> None:
    before, after = spend(BURN, lambda pid: TaskClock(pid).read())
    assert after.cpu - before.cpu > 200 * MS - TICK
    assert after.process_cpu - before.process_cpu > 200 * MS - TICK


def test_a_sleeping_process_has_no_cpu_time() -> None:
    before, after = spend("time.sleep(0.3)", lambda pid: TaskClock(pid).read())
    assert after.cpu - before.cpu < 100 * MS


def test_threads_of_a_worker_count_for_the_process_but_not_for_its_main_task() -> None:
    burn = BURN.replace("\n", "\n ")
    before, after = spend(f"def f():\n {burn}\nt = threading.Thread(target=f); t.start(); t.join()", read_worker)
    assert after.process_cpu - before.process_cpu > 200 * MS - TICK
    assert after.cpu - before.cpu < 100 * MS


def read_worker(pid: int) -> CpuTimes | None:
    clock = WorkerClock(pid)
    try:
        return clock.read()
    finally:
        clock.close()


def test_a_task_that_is_gone_reads_as_nothing_and_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    clock = WorkerClock(child.pid)
    assert clock.read() is not None
    child.kill()
    child.communicate()
    assert clock.read() is None
    clock.close()
    assert WorkerClock(child.pid).read() is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_reads_its_own_thread() -> None:
    own = OwnTask(None)
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        sum(range(100))
    cpu, queue = own.spent()
    assert cpu >= 50 * MS
    assert queue == 0


def test_a_wait_for_the_end_of_a_batch_is_split_like_the_making_of_it() -> None:
    """It read for 60 ms, then it computed for 20 ms, and for the last 20 of these the loop waited."""
    made = CpuTimes(20 * MS, 0, 20 * MS)
    assert charged(split_data_wait(NOTHING, made, 0, 0, 20 / 80), 20 * MS) == {"data_cpu": 5, "data_read": 15}
