"""CPU queues in collectives and blocked time of a CPU rank: the arithmetic, real threads, and real training loops."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_forks import Forks
from support_ledgers import until

from whyidle.ledger.causes import CAUSE
from whyidle.torch_hooks.books import FIRST
from whyidle.torch_hooks.loaders import Loaders
from whyidle.torch_hooks.meters import collective, iterators, own
from whyidle.torch_hooks.meters.blocked import BlockedMeter, helped
from whyidle.torch_hooks.meters.budget import Budget
from whyidle.torch_hooks.meters.collective import WaitMeter, in_line
from whyidle.torch_hooks.meters.data import OwnMeter
from whyidle.torch_hooks.tasks import OwnTask, TaskClock
from whyidle.torch_hooks.threads import OwnThread, OwnThreads

MS = 1_000_000

pytestmark = pytest.mark.alone
"""Ends threads that other tests have left in this process, because their time would count."""


@pytest.fixture
def task() -> Iterator[TaskClock]:
    clock = TaskClock(os.getpid(), threading.get_native_id())
    yield clock
    clock.close()


def start(work: Callable[[threading.Event], object], name: str = "") -> tuple[threading.Thread, threading.Event]:
    """A thread with a name that the kernel knows. It works until its event is set."""
    named, over = threading.Event(), threading.Event()

    def run() -> None:
        if name:
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        named.set()
        work(over)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert named.wait(10)
    return thread, over


def end(thread: threading.Thread, over: threading.Event) -> None:
    """Ends a thread, also for the kernel, which is a moment after Python has joined it."""
    over.set()
    thread.join()
    assert until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())


def spin(seconds: float) -> None:
    """Uses this much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


# -- queues in a collective


@given(queues=st.lists(st.integers(-MS, 200 * MS), max_size=8), ns=st.integers(0, 100 * MS))
def test_queue_is_between_the_longest_thread_queue_and_the_wait(queues: list[int], ns: int) -> None:
    queue = in_line(queues, ns)
    assert 0 <= queue <= ns
    assert queue >= min(max([0, *queues]), ns) - 1
    assert queue <= sum(max(one, 0) for one in queues) + 1


def test_queues_of_two_threads_overlap_by_chance() -> None:
    assert in_line([50 * MS, 0, 50 * MS], 100 * MS) == 75 * MS


def test_a_wait_without_a_reading_is_left_whole(task: TaskClock) -> None:
    assert WaitMeter(task, OwnThreads()).queued(10 * MS) == 0


def begin(meter: WaitMeter) -> None:
    """A wait begins, as in the phase machine."""
    if (now := collective._now()) >= meter.due_ns:
        meter.begin(now)


class Queueing(TaskClock):
    """Has waited for a CPU for 20 µs more at each reading."""

    readings = 0

    def queue(self) -> int:
        self.readings += 1
        return self.readings * 20_000


def test_short_waits_are_split_as_the_measured_ones_were() -> None:
    task = Queueing(os.getpid(), threading.get_native_id())
    meter = WaitMeter(task, OwnThreads())
    waits = []
    for _ in range(64):
        begin(meter)
        waits.append(meter.queued(100_000))
    assert task.readings < 2 * 64
    assert waits[-1] == pytest.approx(20_000, rel=0.01)


class Dear(TaskClock):
    """A reading takes 150 µs. A tenth of each wait was a CPU queue."""

    now_ns = readings = 0

    def queue(self) -> int:
        self.readings += 1
        self.now_ns += 150_000
        return self.now_ns // 10


def test_expensive_readings_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Dear(os.getpid(), threading.get_native_id())
    monkeypatch.setattr(collective, "_now", lambda: task.now_ns)
    meter, queued, waited = WaitMeter(task, OwnThreads()), 0, 0
    for _ in range(5_000):
        begun = task.now_ns
        begin(meter)
        task.now_ns += 3 * MS
        queue = meter.queued(task.now_ns - begun)
        waited += task.now_ns - begun
        queued += queue
    assert task.readings * 150_000 < 0.015 * task.now_ns
    assert queued == pytest.approx(0.1 * waited, rel=0.05), "the waits between two readings are split as those"
    assert task.booked_ns == pytest.approx(queued, rel=0.01)


class Busy(TaskClock):
    """A reading takes 300 µs."""

    now_ns = queued_ns = 0

    def queue(self) -> int:
        self.now_ns += 300_000
        return self.queued_ns


def test_the_queue_of_the_training_thread_while_it_computes_is_not_part_of_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = Busy(os.getpid(), threading.get_native_id())
    monkeypatch.setattr(collective, "_now", lambda: task.now_ns)
    meter, queued = WaitMeter(task, OwnThreads()), 0
    for _ in range(50):
        task.now_ns, task.queued_ns = task.now_ns + 100 * MS, task.queued_ns + 40 * MS
        begin(meter)
        task.now_ns, task.queued_ns = task.now_ns + 100 * MS, task.queued_ns + 5 * MS
        queued += meter.queued(100 * MS)
    assert queued == pytest.approx(50 * 5 * MS, rel=0.1), "readings are too expensive for each wait"


def test_an_interrupted_reading_delays_the_next_only_briefly() -> None:
    budget = Budget()
    budget.spend(10_000, 0)
    assert budget.free_ns == 10 * MS
    budget.spend(5_000_000_000, 0)
    assert budget.free_ns == 20 * MS
    for _ in range(20):
        budget.spend(5_000_000_000, 0)
    assert budget.free_ns == 200 * MS


def test_finds_communication_threads_by_name_even_if_they_start_late(task: TaskClock) -> None:
    threads = OwnThreads()
    threads.look(1)
    assert not threads.communication
    thread, over = start(lambda over: over.wait(), "gloo_tcp_loop")
    threads.look(2)
    assert not threads.communication, "it is not time to look again"
    threads.look(10**12)
    assert [one.tid for one in threads.communication] == [thread.native_id]
    end(thread, over)
    threads.look(2 * 10**12)
    assert not threads.communication


def test_threads_that_run_collectives_do_not_make_the_batch(task: TaskClock) -> None:
    """They receive what other ranks send, at any time. A thread that decodes is a helper."""

    def busy(name: str) -> float:
        """The part of a blocked read that counts as CPU time, while a thread of this name uses a CPU."""

        def work(over: threading.Event) -> None:
            while not over.is_set():
                spin(0.001)

        threads = OwnThreads()
        meter = OwnMeter(task, Loaders(lambda workers: None).with_workers(0, training=True), threads)
        thread, over = start(work, name)
        threads.look(1)
        meter.begin(None)
        time.sleep(0.05)
        meter.split(50 * MS)  # in the first wait it turns out that there is such a thread
        meter.begin(None)
        time.sleep(0.2)
        (_, cpu), (_, queue), _ = meter.split(200 * MS)
        end(thread, over)
        return (cpu + queue) / (200 * MS)

    assert busy("gloo_tcp_loop") < 0.1
    assert busy("decoder") > 0.1


def test_helpers_that_wait_for_a_cpu_do_not_look_like_a_slow_read(task: TaskClock) -> None:
    """The training thread makes its batch with a thread that shares its core with another program."""
    cores = os.sched_getaffinity(0)
    competitor = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        os.sched_setaffinity(competitor.pid, {min(cores)})

        def work(over: threading.Event) -> None:
            os.sched_setaffinity(0, {min(cores)})
            while not over.is_set():
                spin(0.001)

        threads = OwnThreads()
        meter = OwnMeter(task, Loaders(lambda workers: None).with_workers(0, training=True), threads)
        thread, over = start(work, "decoder")
        threads.look(1)
        for seconds in (0.05, 0.4):  # in the first wait it turns out that there is such a thread
            meter.begin(None)
            time.sleep(seconds)
            (_, cpu), (_, queue), _ = meter.split(int(seconds * 1000) * MS)
        end(thread, over)
    finally:
        competitor.kill()
        competitor.wait()
    assert queue > 40 * MS
    assert cpu + queue > 300 * MS


def test_a_thread_that_ends_during_a_wait_does_not_affect_the_others(task: TaskClock) -> None:
    thread, over = start(lambda over: over.wait(), "pt_gloo_runloop")
    threads = OwnThreads()
    meter = WaitMeter(task, threads)
    begin(meter)
    assert threads.communication
    end(thread, over)
    meter.queued(10**12)
    assert not threads.communication
    begin(meter)
    meter.queued(10 * MS)


def test_communication_threads_on_one_core_have_queue_time(task: TaskClock) -> None:
    """Two of them and this one share a core: while this thread waits, one of the two always waits for the CPU."""
    cores = os.sched_getaffinity(0)
    ended = []
    try:
        os.sched_setaffinity(0, {min(cores)})
        ended = [start(burn_until, "pt_gloo_runloop") for _ in range(2)]
        meter = WaitMeter(task, OwnThreads())
        begin(meter)
        begun = time.monotonic_ns()
        time.sleep(0.5)
        ns = time.monotonic_ns() - begun
        queue = meter.queued(ns)
    finally:
        for thread, over in ended:
            end(thread, over)
        os.sched_setaffinity(0, cores)
    assert ns // 2 < queue <= ns


def burn_until(over: threading.Event) -> None:
    data = os.urandom(1 << 20)
    while not over.is_set():
        zlib.compress(data)  # without the GIL, so that both are runnable


# -- blocked time


class Loop:
    """The account of a rank's loop without any bracket."""

    def __init__(self, task: TaskClock, threads: OwnThreads | None = None):
        self.meter = BlockedMeter(task, threads or OwnThreads())
        self.host = self.compute = self.blocked = self.queued = 0
        self.since = time.monotonic_ns()
        self.meter.start(self.since, 0, 0)

    def step(self, *, host: bool = False) -> tuple[int, int]:
        now = time.monotonic_ns()
        ns, self.since = now - self.since, now
        if host:
            self.host += ns
        else:
            self.compute += ns
        before = (self.host, self.compute)
        from_host, from_compute, queued = self.meter.step(now, *before)
        assert 0 <= queued <= from_host + from_compute
        assert 0 <= from_host <= (ns if host else 0)
        assert 0 <= from_compute <= (0 if host else ns)
        self.host -= from_host
        self.compute -= from_compute
        self.blocked += from_host + from_compute - queued
        self.queued += queued
        return from_host, from_compute

    @property
    def share(self) -> float:
        return self.blocked / (self.blocked + self.queued + self.host + self.compute)


def test_a_sleeping_loop_is_blocked_for_as_long_as_it_sleeps(task: TaskClock) -> None:
    loop, slept = Loop(task), 0
    for _ in range(20):
        queue, begun = task.queue(), time.monotonic_ns()
        time.sleep(0.02)
        slept += time.monotonic_ns() - begun - (task.queue() - queue)
        spin(0.002)
        loop.step()
    for _ in range(150):  # the last reading may have been 200 ms ago; what is found late is taken from later steps
        spin(0.002)
        loop.step()
    assert loop.blocked == pytest.approx(slept, rel=0.1)


@pytest.mark.parametrize("computes", [True, False], ids=["held", "free"])
def test_a_look_that_finds_the_lock_held_stands_for_the_time_before_it(computes: bool, task: TaskClock) -> None:
    """Looks are seconds apart."""
    threads = OwnThreads()
    loop = Loop(task, threads)
    thread, over = start(lambda over: [spin(0.001) for _ in iter(over.is_set, True)] if computes else over.wait())
    threads.born.append((thread.native_id or 0, "save"))
    loop.step()
    for _ in range(5):
        time.sleep(0.05)
        loop.step()
    assert loop.meter.lock_ns == 0
    assert (threads.lock.awaited_ns > 0) == computes
    unlooked = loop.meter._unlooked
    threads.lock.until_ns = time.monotonic_ns() + 10**10
    for _ in range(20):  # the last reading may have been 200 ms ago
        time.sleep(0.02)
        loop.step()
    end(thread, over)
    if computes:
        assert min(unlooked) > 0
        assert loop.meter.lock_ns > min(unlooked)
    else:
        assert loop.meter.lock_ns < 10 * MS


def test_a_thread_that_holds_the_lock_does_not_help_with_batches(task: TaskClock) -> None:
    threads = OwnThreads()
    threads.lock.seen_until_ns = time.monotonic_ns() + 10**10
    meter = OwnMeter(task, Loaders(lambda workers: None).with_workers(0, training=True), threads)
    thread, over = start(lambda over: [spin(0.001) for _ in iter(over.is_set, True)])
    meter.begin(SimpleNamespace(_num_yielded=1))
    begun = time.monotonic_ns()
    time.sleep(0.1)
    parts = dict(meter.split(time.monotonic_ns() - begun))
    end(thread, over)
    assert parts[CAUSE["host_blocked"]] == -1
    assert parts[CAUSE["data_cpu"]] < 20 * MS


def test_short_steps_are_judged_together_and_lose_no_more_than_they_have(task: TaskClock) -> None:
    loop = Loop(task)
    for _ in range(200):
        time.sleep(0.001)
        loop.step()
    assert loop.share > 0.5


def test_a_loop_that_computes_is_not_blocked(task: TaskClock) -> None:
    loop = Loop(task)
    for _ in range(10):
        spin(0.01)
        loop.step()
    assert loop.share < 0.02


def test_blocked_time_is_taken_from_causes_that_the_step_has(task: TaskClock) -> None:
    loop = Loop(task)
    for _ in range(20):  # a span in which another thread of this process worked may have no blocked time
        time.sleep(0.02)
        _, from_compute = loop.step(host=True)
        assert from_compute == 0
    assert loop.blocked > 10 * MS


@pytest.fixture
def crowded() -> Iterator[None]:
    """Another process that always wants the one CPU that this thread may use."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)
        other.kill()
        other.wait()


@pytest.mark.usefixtures("crowded")
def test_a_loop_that_queues_for_a_cpu_does_not_compute_meanwhile(task: TaskClock) -> None:
    loop, queue = Loop(task), task.queue()
    for _ in range(60):
        spin(0.01)
        loop.step()
    queue = task.queue() - queue
    assert 0.7 * queue < loop.queued < 1.05 * queue  # the last reading may have been 200 ms ago
    assert loop.queued > loop.compute / 2
    assert loop.share < 0.05


@pytest.mark.usefixtures("crowded")
def test_a_queue_in_another_phase_is_not_one_of_the_loop(task: TaskClock) -> None:
    """As in a wait for a batch. The loop sleeps, so that the queues of these waits could be taken from that."""
    loop, own_queue, other_queue = Loop(task), 0, 0
    for _ in range(20):
        wait = OwnTask(task)
        spin(0.01)
        other_queue += wait.spent()[1]
        loop.since, queue = time.monotonic_ns(), task.queue()
        time.sleep(0.01)
        loop.step()
        own_queue += task.queue() - queue
    assert loop.queued < own_queue + 0.2 * other_queue


@pytest.mark.usefixtures("crowded")
def test_what_the_loop_queues_while_it_makes_a_group_is_a_part_of_making_it(task: TaskClock) -> None:
    loop, queue = Loop(task), 0
    for _ in range(40):
        queued, begun = task.queue(), time.monotonic_ns()
        spin(0.01)
        task.keep_queue(queued, time.monotonic_ns() - begun)
        loop.step(host=True)
        before = task.queue()
        spin(0.005)
        loop.step()
        queue += task.queue() - before
    kept = loop.host / task.kept_ns
    assert kept > 0.9
    assert loop.queued > 0.5 * queue


def test_waiting_for_busy_threads_of_libraries_is_not_blocked_time(task: TaskClock) -> None:
    """Also while they wait for a CPU. To Python's ``threading``, they are unknown."""
    loop = Loop(task)
    for _ in range(30):
        over = threading.Event()
        ended = [threading.Semaphore(0) for _ in range(3)]
        for one in ended:
            _thread.start_new_thread(burn_and_tell, (over, one))
        threading.Timer(0.05, over.set).start()
        for one in ended:
            one.acquire()
        loop.step()
    assert loop.share < 0.02


def burn_and_tell(over: threading.Event, ended: threading.Semaphore) -> None:
    burn_until(over)
    ended.release()


def test_waiting_for_a_thread_that_decodes_is_blocked_time(task: TaskClock) -> None:
    """A thread of the training code fills a queue of batches, and works all the time."""
    batches: Queue[None] = Queue(1)
    over = threading.Event()

    def decode() -> None:
        while not over.is_set():
            compressed_for(0.02)
            batches.put(None)

    thread = threading.Thread(target=decode, daemon=True)
    thread.start()
    loop = Loop(task)
    for _ in range(100):
        batches.get()
        loop.step()
    over.set()
    batches.get()
    assert loop.share > 0.7


def compressed_for(seconds: float) -> None:
    """Uses a CPU without the GIL."""
    data, begun = os.urandom(1 << 16), time.thread_time()
    while time.thread_time() - begun < seconds:
        zlib.compress(data)


def test_time_in_other_phases_does_not_hide_blocked_time(task: TaskClock) -> None:
    loop, slept = Loop(task), 0
    for _ in range(10):
        queue, cpu = task.queue(), time.thread_time_ns()
        spin(0.02)  # for example in a data phase that measures it
        queue = task.queue() - queue
        task.booked_ns += time.thread_time_ns() - cpu + queue
        task.booked_queue_ns += queue
        loop.since = begun = time.monotonic_ns()
        queue = task.queue()
        time.sleep(0.02)
        slept += time.monotonic_ns() - begun - (task.queue() - queue)
        loop.step()
    # If a rank loses its CPU between two phases of this test, its queue is in neither, and blocked time is less.
    assert 0.5 * slept < loop.blocked < 1.1 * slept


def test_threads_of_a_library_that_made_the_batch_do_not_hide_a_sleep(task: TaskClock) -> None:
    """As those of a tokenizer in a collator: they work in the wait for the batch, and sleep with the loop."""
    asked, ended = threading.Semaphore(0), threading.Semaphore(0)

    over = threading.Event()

    def tokenizes() -> None:
        while asked.acquire() and not over.is_set():
            compressed_for(0.02)
            ended.release()

    _thread.start_new_thread(tokenizes, ())
    threads = OwnThreads()
    loop = Loop(task, threads)
    data = OwnMeter(task, Loaders(lambda workers: None).with_workers(0, training=True), threads)
    slept = 0
    for _ in range(20):
        begun = time.monotonic_ns()
        data.begin(None)
        asked.release()
        ended.acquire()
        data.split(time.monotonic_ns() - begun)
        loop.since = begun = time.monotonic_ns()
        queue = task.queue()
        time.sleep(0.02)
        slept += time.monotonic_ns() - begun - (task.queue() - queue)
        loop.step()
    over.set()
    asked.release()
    assert 0.5 * slept < loop.blocked < 1.1 * slept


def thread_of(name: str = "", *, pool: bool = False, python: bool = False) -> OwnThread:
    thread = OwnThread(-1)
    thread.name, thread.pool, thread.python = name, pool, python
    return thread


def test_counts_work_that_other_threads_did_for_the_loop() -> None:
    spent = [
        (thread_of("pt_gloo_runloop"), 30 * MS, 40 * MS),  # runs collectives, and does not work for the loop's own code
        (thread_of(pool=True), 12 * MS, 3 * MS),  # in addition to the training thread's 10 ms
        (thread_of(python=True), 7 * MS, 8 * MS),  # decodes samples
        (thread_of(), 5 * MS, 6 * MS),
    ]
    assert helped(spent, 10 * MS, 57 * MS) == ((2 + 3 + 5 + 6) * MS, 3 * MS)


POOL = """
import os, threading, time, torch
from whyidle.torch_hooks.threads import OwnThreads
torch.set_num_threads(2)
a = torch.randn(512, 512)
for _ in range(5):
    a @ a
threads = OwnThreads()
threads.look(1)
threads.tell_pools()
end = time.monotonic() + 20
while not any(thread.pool for thread in threads.helpers) and time.monotonic() < end:
    time.sleep(0.05)
print(sum(thread.pool for thread in threads.helpers), len(threads.helpers))
"""


def test_recognises_threads_of_torchs_own_pool(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    done, _ = forks.run((str(tmp_path / "pool.py"),), tmp_path, recorded=False)
    pooled, helpers = map(int, done.stdout.split())
    assert pooled >= 1, f"none of {helpers} threads; torch may use another OpenMP library here. {done.stderr}"


def test_a_rare_stall_does_not_get_the_cpu_time_of_the_steps_before_it(task: TaskClock) -> None:
    """Batches that the loop makes itself come at once, and now and then one waits for a file."""
    meter = OwnMeter(task, Loaders(lambda workers: None).with_workers(0, training=True), OwnThreads())
    iterator = SimpleNamespace(_num_yielded=1)
    for number in range(40):
        spin(0.02)
        if time.monotonic_ns() >= meter.due_ns:
            meter.begin(iterator)
        if number < 39:
            meter.split(1000)
    time.sleep(0.1)
    parts = dict(meter.split(100 * MS))
    assert sum(ns for ns in parts.values() if ns > 0) < 20 * MS
    assert parts[CAUSE["data_read"]] == -1


@pytest.mark.parametrize(("ordered", "worker"), [(True, 0), (False, 2)])
def test_the_worker_that_goes_on_owes_the_next_batch_if_any_may_come(ordered: bool, worker: int) -> None:
    """Worker 0 is stuck with batch 0, and the others have made six batches meanwhile."""
    iterator = SimpleNamespace(_rcvd_idx=0, _send_idx=9, _workers_status=[True] * 3, _num_yielded=6, _in_order=ordered)
    iterator._task_info = {0: (0,), 3: (0,), 7: (1,), 8: (2,)}
    assert iterators.owes(iterator) == worker
    assert iterators.received(iterator) == (0 if ordered else 6)


def test_without_an_order_the_cost_of_a_look_is_that_of_the_batches_that_are_under_way() -> None:
    """A worker is stuck with batch 0, and the others have made a million batches meanwhile."""
    iterator = SimpleNamespace(_rcvd_idx=0, _send_idx=10**6, _workers_status=[True] * 2, _in_order=False)
    iterator._task_info = Counting({0: (0,), 10**6 - 1: (1,)})
    assert iterators.owes(iterator) == 1
    assert iterator._task_info.asked < 10


class Counting(dict[int, tuple[int, ...]]):
    asked = 0

    def get(self, *args: Any) -> Any:
        self.asked += 1
        return super().get(*args)


def test_only_the_first_batch_of_an_epoch_is_the_first() -> None:
    meter = OwnMeter(None, Loaders(lambda workers: None).with_workers(0, training=True), OwnThreads())
    iterator, firsts = SimpleNamespace(_num_yielded=0), 0
    for number in range(20):
        iterator._num_yielded = number
        if time.monotonic_ns() >= meter.due_ns or not number:
            meter.begin(iterator)
        firsts += meter.split(1000)[0][0] >= FIRST
    assert firsts == 1


def test_the_time_of_collectives_before_a_wait_is_taken_off_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 50 ms has collectives of 40 ms in other threads. In the wait of 30 ms that follows without a reading at
    its beginning, other threads decode for 29 ms."""
    clock = {"now": 0, "thread": 0, "process": 0}
    monkeypatch.setattr(own, "time", SimpleNamespace(monotonic_ns=lambda: clock["now"]))
    monkeypatch.setattr(own, "_thread_cpu", lambda: clock["thread"])
    monkeypatch.setattr(own, "_process_cpu", lambda: clock["process"])
    monkeypatch.setattr(own, "queued", lambda task: 0)
    times, collectives = own.OwnTimes(), [0]
    others = SimpleNamespace(begin=lambda threads: None, spent=lambda ns, cpu: (collectives[0], 0), helped_ns=0)
    monkeypatch.setattr(times, "_others", others)
    for read in (True, True, False):
        if read:
            times.begin(None, cast(Any, None))
            collectives[0] = 0
        else:
            collectives[0] = 40 * MS
        if not read:
            clock["now"] += 30 * MS
            clock["process"] += 29 * MS
        spent = times.since(None, 30 * MS if not read else 0, read=read)
        clock["now"] += 50 * MS
        clock["process"] += 40 * MS
    assert spent.others == pytest.approx(29 * MS, abs=MS)
