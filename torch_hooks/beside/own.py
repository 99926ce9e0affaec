"""What this rank itself does beside its training: saves behind the loop, threads, and processes that it has started.

A source returns, for the time since its last call, the share in which each work worked.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping

from ..proc import open_file, read, read_bytes
from ..threads import OURS, OwnThread, named

Shares = dict[str, float]
"""Label of a work (`KIND NAME`) -> share."""

_ENDED = 0.05
"""The share of a thread or process that has ended since the last call: it worked for a part of the time."""
_LOADER = "_pin_memory_loop"
"""A thread of torch's data loader: it works for each batch."""
_NO_NAME = "?"
"""The kernel shows no arguments for a moment while a process begins a program, and none of a process that has ended."""
_UNNAMED = f"process {_NO_NAME}"
_MOST = 64
_CHILDREN_BYTES = 2048
FORK_SERVER = "forkserver"
_OF_MULTIPROCESSING = (FORK_SERVER, "resource_tracker", "spawn")


class Behind:
    """Saves behind the loop. Any thread may say that one begins or ends: thousands do, where each tensor is a file."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a handler of a signal may begin a save in the same thread
        self._open = self._begun = self._spent = 0
        self._since = self._told = 0
        self._ended: deque[tuple[int, int]] = deque(maxlen=_MOST)
        self.label = "save"

    def begins(self, apart: bool = False, at_ns: int = 0) -> None:
        """``apart``: another process writes it, and not a thread. ``at_ns``: when, if not now (CLOCK_MONOTONIC)."""
        with self._lock:
            self.label = "save process" if apart else "save"
            if not self._open:
                self._begun = at_ns or time.monotonic_ns()
            self._open += 1

    def ends(self) -> None:
        with self._lock:
            if self._open == 1:
                now = time.monotonic_ns()
                self._spent += max(0, now - self._begun)
                self._ended.append((self._begun, now))
            self._open = max(0, self._open - 1)

    def stretches(self, begun_ns: int, now_ns: int) -> list[tuple[int, int]]:
        """(begin, end) of saves between these times, the latest _MOST, oldest first."""
        with self._lock:
            found = [*self._ended, *([(self._begun, now_ns)] if self._open else [])]
        return [(begin, end) for begin, end in found if begin < now_ns and end > begun_ns]

    def works(self, now_ns: int) -> Shares:
        """More than 1 if it has only now become known that one began before the last call."""
        with self._lock:
            whole = self._spent + (max(0, now_ns - self._begun) if self._open else 0)
        spent, passed = whole - self._told, now_ns - self._since
        begun, self._told, self._since = self._since > 0, whole, now_ns
        return {self.label: spent / passed} if begun and spent > 0 and passed > 0 else {}


class Threads:
    """The Python threads of this process, except the training thread, whyidle's, and those of data loaders.

    A thread also works while it is runnable without a CPU: on busy cores it would seem to rest otherwise.
    """

    def __init__(self, training: int):
        """``training``: the training thread, as the kernel numbers it."""
        self._training = training
        self._known: dict[int, OwnThread] = {}
        self._before: dict[int, tuple[str, int]] = {}
        self._since = 0

    def works(self, now_ns: int) -> Shares:
        known: dict[int, OwnThread] = {}
        found: dict[int, tuple[str, int]] = {}
        for thread in threading.enumerate():
            tid = thread.native_id
            if tid is None or tid == self._training or len(known) >= _MOST:
                continue
            one = known[tid] = self._known.get(tid) or _met(tid, thread)
            if one.ours:
                continue
            try:
                found[tid] = f"thread {one.name}", one.cpu() + one.queue()
            except (OSError, ValueError, IndexError):  # it has ended
                continue
        shares = _grown(self._before, found, now_ns - self._since if self._since else 0)
        self._known, self._before, self._since = known, found, now_ns
        return shares


def _met(tid: int, thread: threading.Thread) -> OwnThread:
    found = OwnThread(tid, python=True)
    found.name = named(thread)
    # autograd's threads have dummy objects, and compute for the loop
    found.ours = found.name.startswith(OURS) or found.name == _LOADER or isinstance(thread, threading._DummyThread)
    return found


class Processes:
    """The processes that this one has started, except its data workers."""

    def __init__(self, workers: Callable[[], Collection[int]]):
        self._workers = workers
        self._files: dict[int, int] = {}
        self._before: dict[int, tuple[str, int]] = {}
        self._since = self._ended = 0
        self._last = ""  # the label of the process that was seen last and has ended
        self._last_workers: tuple[frozenset[int], frozenset[int]] = frozenset(), frozenset()  # all, and those that live

    def __del__(self) -> None:
        for file in self._files.values():
            if file >= 0:
                os.close(file)

    def own(self) -> list[int]:
        """The processes that the main thread and Python threads have started, with data workers. The kernel lists them
        by thread."""
        tids = {os.getpid()} | {thread.native_id or 0 for thread in threading.enumerate()}
        for tid in tids - self._files.keys():
            self._files[tid] = open_file(f"/proc/self/task/{tid}/children")
        found = []
        for tid, file in [*self._files.items()]:
            try:
                found += _pids(read(file, _CHILDREN_BYTES)) if file >= 0 else []
            except OSError:  # the thread has ended, and another one has its children
                os.close(file)
                self._files[tid] = file = -1
            if tid not in tids:
                del self._files[tid]
                if file >= 0:
                    os.close(file)
        return found

    def works(self, now_ns: int) -> Shares:
        workers, pids = self._workers(), self.own()
        found: dict[int, tuple[str, int]] = {}
        for pid in pids:
            if pid in workers or len(found) >= _MOST:
                continue
            if (cpu := tree_cpu(pid, workers)) is not None:
                label = self._before.get(pid, (_UNNAMED, 0))[0]
                found[pid] = (f"process {program_of(pid)}" if label == _UNNAMED else label), cpu
        passed = now_ns - self._since if self._since else 0
        shares = _grown(self._before, found, passed)
        known, lived = self._last_workers
        now, live = self._last_workers = frozenset(workers), frozenset(workers).intersection(pids)
        self._of_ended(shares, found, passed, now <= known and lived <= live)
        self._before, self._since = found, now_ns
        return shares

    def _of_ended(self, shares: Shares, found: Mapping[int, tuple[str, int]], passed: int, same_workers: bool) -> None:
        """Adds what processes have computed that have ended since the last call, perhaps without having been seen. It
        is known once this process has waited for them; data workers that have ended would count, too."""
        gone = {pid: one for pid, one in self._before.items() if pid not in found}
        usage, before = resource.getrusage(resource.RUSAGE_CHILDREN), self._ended
        self._ended = round(1e9 * (usage.ru_utime + usage.ru_stime))
        computed = self._ended - before - sum(cpu for _, cpu in gone.values())
        self._last = label = next((label for label, _ in gone.values()), self._last)
        if label and same_workers and passed > 0 and computed > 0:
            shares[label] = min(1.0, shares.get(label, 0.0) + computed / passed)


def _grown(before: dict[int, tuple[str, int]], now: dict[int, tuple[str, int]], passed: int) -> Shares:
    """The CPU time of each label as a share of the time that has passed."""
    shares: Shares = {}
    if passed <= 0:
        return shares
    for number, (label, cpu) in now.items():
        grown = cpu - before[number][1] if number in before else cpu
        shares[label] = min(1.0, shares.get(label, 0.0) + max(0, grown) / passed)
    for number, (label, _) in before.items():
        if number not in now:
            shares[label] = max(shares.get(label, 0.0), _ENDED)
    return shares


def children(pid: int) -> list[int]:
    """The processes that the main thread of a process has started; needs CONFIG_PROC_CHILDREN."""
    return _pids(read_bytes(f"/proc/{pid}/task/{pid}/children", _CHILDREN_BYTES))


def _pids(raw: bytes) -> list[int]:
    """The last one may be cut, unless a blank follows."""
    return [int(word) for word in raw[: raw.rfind(b" ") + 1].split()]


def process_cpu(pid: int) -> int:
    """The CPU ns of a process, by its CPU-time clock (clock_getcpuclockid(3)). Raises OSError."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def tree_cpu(pid: int, besides: Container[int] = (), depth: int = 2) -> int | None:
    """The CPU ns of a process and of those that it has started, as long as they live; None if it has ended. Without
    ``besides`` and what they have started: a fork server starts the data workers."""
    try:
        total = process_cpu(pid)
    except OSError:
        return None
    for child in children(pid) if depth else ():
        if child not in besides:
            total += tree_cpu(child, besides, depth - 1) or 0
    return total


def program_of(pid: int) -> str:
    """What a process runs: the script or the module of a Python, otherwise the program."""
    words = read_bytes(f"/proc/{pid}/cmdline", 4096).decode("utf-8", "replace").split("\0")
    program = os.path.basename(words[0]) or _NO_NAME
    if program.startswith("python"):
        return _script(words[1:]) or program
    return program


def _script(words: list[str]) -> str:
    """What a Python with these arguments runs; empty for code that the arguments contain, which nobody else may see."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return os.path.basename(word)
        # A word may have several flags, the one with an argument last: -um train, -Ic "import ..."
        letter = word[-1] if word[:2] not in ("--", "-X", "-W", "-c", "-m") else word[1]
        if letter == "c":
            code = next(rest, "") if len(word) == 2 or word[1] != "c" else word[2:]
            return next((name for name in _OF_MULTIPROCESSING if f"multiprocessing.{name} " in code), "")
        if letter == "m":
            return next(rest, "") if len(word) == 2 or word[1] != "m" else word[2:]
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            next(rest, "")
    return ""
