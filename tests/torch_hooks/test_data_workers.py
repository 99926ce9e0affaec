"""What is recorded of data workers: their start, first batches, locks, and workers that are gone. With real loaders."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_forks import Forks

from whyidle.agent.processes.owing import owing
from whyidle.ledger.directory import read_directory, run_of
from whyidle.ledger.doing import DOING, doing, parse, start_ticks, state
from whyidle.linux import syscalls
from whyidle.torch_hooks.meters.worker_looks import LOOKS_AT, PARALLEL_AT, TOGETHER_AT, changes
from whyidle.torch_hooks.meters.worker_reads import Reads, reads_of
from whyidle.torch_hooks.meters.worker_reads import parse as parse_reads
from whyidle.torch_hooks.skips import LEAST, UNUSED_NS, Skips
from whyidle.torch_hooks.splits import as_first, blocked_of, split_start
from whyidle.torch_hooks.storage.mounts import Mounts
from whyidle.torch_hooks.storage.readers import Finder, Reader

SLOW = 0.3e9


def waits(forks: Forks, folder: Path, *names: str) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """For each loader: ns per cause, and other words."""
    done, _ = forks.run(("loaders.py", *names), folder, recorded=False)
    assert done.returncode == 0, done.stderr
    causes, _, others = done.stdout.splitlines()[:3]
    return json.loads(causes), json.loads(others)


def test_the_start_of_a_worker_ends_with_its_first_request(tmp_path: Path, forks: Forks) -> None:
    """Preparing takes 0.3 s, then one batch 0.8 s. Workers that are spawned also import modules."""
    causes, others = waits(forks, tmp_path, "prepares:fork", "prepares:spawn", "prepares:forkserver")
    for name, wait in causes.items():
        assert wait["data_start"] > 0.9 * SLOW, (name, wait)
        assert 0.6e9 < wait["data_read"] + wait["data_queue"] < 1.4e9, (name, wait)
        assert others[name]["data_first_ns"] > 0.6e9, others
        assert not others[name]["faults"]


def test_the_first_batches_of_an_epoch_are_marked(tmp_path: Path, forks: Forks) -> None:
    """Two workers fill their buffers at the same time. One of them is exhausted long before the other."""
    causes, others = waits(forks, tmp_path, "buffered", "sleeps:0")
    assert others["buffered"]["data_first_ns"] > 0.8 * SLOW, others
    assert others["buffered"]["unattributed"] < 0.2 * sum(causes["buffered"].values()), others
    assert 0 < others["sleeps:0"]["data_first_ns"] < 0.3 * causes["sleeps:0"]["data_read"], others


@pytest.mark.alone
def test_waits_for_the_end_of_a_batch_are_not_only_what_comes_last(tmp_path: Path, forks: Forks) -> None:
    """Four workers read for 60 ms and then decode for 15. Each wait takes about 19 ms: the decoding, and some more."""
    causes, _ = waits(forks, tmp_path, "reads_first")
    wait = causes["reads_first"]
    assert wait["data_read"] > 1.5 * (wait["data_cpu"] + wait["data_queue"]), wait


def test_a_wait_for_a_worker_that_was_killed_is_not_a_ready_batch(tmp_path: Path, forks: Forks) -> None:
    causes, others = waits(forks, tmp_path, "dies")
    assert causes["dies"]["data_handoff"] < 0.2 * SLOW, causes
    assert causes["dies"]["data_read"] + others["dies"]["unattributed"] > 0.8 * SLOW, (causes, others)
    assert others["dies"]["data_gone_ns"] == others["dies"]["unattributed"]
    assert not others["dies"]["open_worker_pid"]
    assert not others["dies"]["faults"]


def test_waits_while_a_worker_has_no_samples_left_are_counted(tmp_path: Path, forks: Forks) -> None:
    causes, others = waits(forks, tmp_path, "one_shard", "sleeps")
    waited = sum(causes["one_shard"].values())
    assert 0.7 * waited < others["one_shard"]["data_exhausted_ns"] <= waited
    assert others["one_shard"]["exhausted_worker_ns"] == others["one_shard"]["data_exhausted_ns"]
    assert not others["sleeps"]["data_exhausted_ns"]


def test_workers_that_share_a_lock_are_not_seen_to_work_in_parallel(tmp_path: Path, forks: Forks) -> None:
    _, others = waits(forks, tmp_path, "takes_turns")
    found = others["takes_turns"]
    if not sum(found[kind] for kind in DOING):
        pytest.skip("this kernel does not show the system call of a child")
    assert found["lock"] >= 2, found
    assert found["parallel_looks"] <= 0.5 * found["together_looks"], found


def test_batches_that_a_loop_skips_are_counted(tmp_path: Path, forks: Forks) -> None:
    """The loop takes 36 of 40 batches of 20 ms without computing on them. Another loop computes on each."""
    causes, others = waits(forks, tmp_path, "skips:0", "skips", "sleeps:0")
    for name in ("skips:0", "skips"):
        found = others[name]
        # If other programs take the CPU while the loop has a batch, it seems to compute on that one.
        assert (18 <= found["skipped_batches"] <= 36, found["skips"]) == (True, 1), found
        assert 0.6e9 < found["skipped_ns"] < 1.1 * sum(causes[name].values()) + 0.1e9, found
    assert not others["sleeps:0"]["skipped_batches"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("running", "running"),
        ("-1 0x7ffdde2d5e38 0x7fca86e9a2c7", "read"),
        ("202 0x7fca87bba000 0x109 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7fca", "lock"),
        ("202 0x556a2b19f3e0 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7fca", "other"),  # a lock of its own threads
        ("73 0xd 0x2 0x0 0x7fca 0x0 0x0 0x7ffd 0x7fca", "lock"),
        ("72 0x13 0x7 0x7ffd 0x7fca 0x0 0x0 0x7ffd 0x7fca", "lock"),
        ("230 0x1 0x1 0x7ffd 0x0 0x0 0x0 0x7ffd 0x7fca", "sleep"),
        ("7 0x7fca 0x1 0x1388 0x1 0x0 0x0 0x7ffd 0x7fca", "network"),
        ("0 0x3 0x7fca 0xa 0x556a 0x0 0x0 0x7ffd 0x7fca", "read"),
        ("0 0x4 0x7fca 0xa 0x556a 0x0 0x0 0x7ffd 0x7fca", "network"),
        ("0 0x5 0x7fca 0xa 0x556a 0x0 0x0 0x7ffd 0x7fca", "other"),
        ("999 0x5 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7fca", "other"),
        ("", None),
        ("nonsense", None),
    ],
)
def test_system_calls_tell_what_a_worker_does(line: str, kind: str | None) -> None:
    files = {3: "/data/shard-1", 4: "socket:[17]", 5: "pipe:[18]"}
    assert parse(line.encode(), files.__getitem__, "x86_64") == kind


def test_looks_at_a_process_that_sleeps_and_at_one_that_has_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1
    ) as it:
        assert it.stdout is not None
        it.stdout.readline()
        time.sleep(0.1)
        assert doing(it.pid) in ("sleep", None)
        assert state(it.pid) == "S"
        assert start_ticks(it.pid) > 0
        it.kill()
    assert doing(it.pid) is None
    assert state(it.pid) == ""
    assert start_ticks(it.pid) == 0
    assert reads_of(it.pid) is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], {}),
        (["lock"], {LOOKS_AT + DOING.index("lock"): 1}),
        (["lock", "sleep"], {LOOKS_AT + DOING.index("lock"): 1, LOOKS_AT + DOING.index("sleep"): 1, TOGETHER_AT: 1}),
        (["read", "read"], {LOOKS_AT + DOING.index("read"): 2, TOGETHER_AT: 1, PARALLEL_AT: 1}),
    ],
)
def test_a_look_counts_each_worker_and_whether_they_work_in_parallel(found: list[str], words: dict[int, int]) -> None:
    grown: dict[int, int] = {}
    for at, number in changes(found):
        grown[at] = grown.get(at, 0) + number
    assert grown == words


def test_reads_are_parsed() -> None:
    text = b"rchar: 5\nwchar: 1\nsyscr: 2\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 0\ncancelled_write_bytes: 0\n"
    assert parse_reads(text) == Reads(5, 2, 4096)


def test_a_first_wait_is_marked_except_the_start_of_its_worker() -> None:
    from whyidle.ledger.causes import CAUSE
    from whyidle.torch_hooks.books import FIRST

    parts = split_start(5, ((CAUSE["data_cpu"], 3), (CAUSE["data_read"], -1)))
    assert as_first(parts) == (
        (CAUSE["data_start"], 5),
        (CAUSE["data_cpu"] + FIRST, 3),
        (CAUSE["data_read"] + FIRST, -1),
    )
    assert blocked_of(parts, 20) == blocked_of(as_first(parts), 20) == 12


@pytest.mark.parametrize(
    ("taken", "pause", "advance", "counted"),
    [(100, 0, 0, 100), (LEAST - 1, 0, 0, None), (100, UNUSED_NS, 0, None), (31, 0, 31, None)],
    ids=["skipped", "few", "computed on", "taken in advance"],
)
def test_a_run_of_batches_without_compute_is_skipped(taken: int, pause: int, advance: int, counted: int | None) -> None:
    skips, now = Skips(), 0
    skips.asked(now, unused=False)
    for _ in range(taken):
        now += 5_000_000
        skips.came_ns = now
        now += pause
        skips.asked(now, unused=True)
    for _ in range(advance):
        skips.taken_in_advance()
    found = skips.end()
    assert found == (None if counted is None else (counted, 5_000_000 * taken, 1))
    assert skips.end() is None


def stuck(folder: str) -> None:
    """A rank whose data worker sleeps for a minute."""
    import torch
    from torch.utils.data import DataLoader

    import whyidle

    os.environ["WHYIDLE_DIR"] = folder
    whyidle.attach()
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in DataLoader(Sleeper(), 1, num_workers=1):  # type: ignore[arg-type]
        weight.sum().backward()
        optimizer.step()


class Sleeper:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index == 10:
            time.sleep(60)
        return index


def until(look: Callable[[], object], seconds: float = 60.0) -> object:
    end = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def test_an_open_wait_says_what_the_worker_does_until_it_is_gone(tmp_path: Path) -> None:
    rank = multiprocessing.get_context("spawn").Process(target=stuck, args=(str(tmp_path),))
    rank.start()
    try:

        def look() -> str:
            ledgers, _ = read_directory(str(tmp_path), steps=True)
            return owing(run_of(ledgers[0]), ledgers).get(0, "") if ledgers and ledgers[0].steps >= 10 else ""

        found = until(look)
        assert found in ("sleep", "") if state(os.getpid()) else found
        [ledger] = read_directory(str(tmp_path), steps=True)[0]
        assert ledger.open_worker_pid
        os.kill(ledger.open_worker_pid, signal.SIGSTOP)
        assert until(lambda: look() == "stopped")
        rank.kill()  # its worker notices that soon
        os.kill(ledger.open_worker_pid, signal.SIGKILL)
        rank.join()
        assert until(lambda: state(ledger.open_worker_pid) in ("", "Z"))
        [after] = read_directory(str(tmp_path), steps=True)[0]
        assert after.open_worker_pid == ledger.open_worker_pid
    finally:
        rank.kill()
        rank.join()


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("import multiprocessing as m; r, w = m.Pipe(False); r.poll(60)", (None,)),  # awaits a request
        ("import socket; a, b = socket.socketpair(); a.settimeout(60); a.recv(1)", ("network", None)),
    ],
)
def test_a_process_that_polls_a_pipe_alone_awaits_work(code: str, kinds: tuple[str | None, ...]) -> None:
    assert does(code) in kinds


@pytest.mark.parametrize("code", ["os.read(os.open(path, os.O_RDWR), 1)", "open(path)"], ids=["reads", "opens"])
def test_a_process_that_waits_at_a_named_pipe_does_not_read_a_file(code: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    code = f"import os; path = {str(tmp_path / 'pipe')!r}; {code}"
    assert does(code) == "other"
    call, seen = does(code, lambda pid: Finder(Mounts(print)).look(Reader(f"/proc/{pid}", f"/proc/{pid}")))
    assert (call.kind in (syscalls.READ, syscalls.METADATA), seen.slot) == (True, -1)


def does(code: str, look: Callable[[int], Any] = doing) -> Any:
    """What a look finds at a process that has run this code for a while."""
    with subprocess.Popen([sys.executable, "-S", "-c", f"print(flush=True); {code}"], stdout=-1) as it:
        assert it.stdout is not None
        it.stdout.readline()
        until(lambda: state(it.pid) == "S")
        time.sleep(0.3)
        found = look(it.pid)
        it.kill()
        return found


def test_the_ledger_has_the_prefetch_factor_of_a_training_loader(tmp_path: Path, forks: Forks) -> None:
    (tmp_path / "train.py").write_text(PREFETCHES)
    outcome, codes = forks.run((str(tmp_path / "train.py"),), tmp_path)
    assert codes == [0], outcome.stderr
    assert outcome.ledgers[0].words["loader_prefetch"] == (3,)


PREFETCHES = """
import torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (batch,) in DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2, num_workers=1, prefetch_factor=3):
    net(batch).sum().backward()
    optimizer.step()
"""
