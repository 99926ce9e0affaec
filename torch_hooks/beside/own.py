"""What this rank itself does beside its training: saves behind the loop, threads, and processes that it has started.

A source returns, for the time since its last call, the share in which each work worked.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection

from ..frames import name_of
from ..proc import open_file, read, read_bytes
from ..threads import OURS, OwnThread

Shares = dict[str, float]
"""Label of a work (`KIND NAME`) -> share."""

_ENDED = 0.05
"""The share of a thread or process that has ended since the last call: it worked for a part of the time."""
_LOADER = "_pin_memory_loop"
"""A thread of torch's data loader: it works for each batch."""
_MOST = 64
_KEPT = 4096
_CHILDREN_BYTES = 2048


class Behind:
    """Saves behind the loop. Any thread may say that one begins or ends."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._open = 0
        self._since = 0
        self._label = "save"

    def begins(self, apart: bool = False) -> None:
        """``apart``: another process writes it, and not a thread."""
        self._label = "save process" if apart else "save"
        self._events.append((time.monotonic_ns(), 1))

    def ends(self) -> None:
        self._events.append((time.monotonic_ns(), -1))

    def works(self, now_ns: int) -> Shares:
        begun = at = self._since or now_ns
        spent = 0
        while self._events:
            moment, change = self._events.popleft()
            if self._open > 0:
                spent += max(0, moment - at)
            at = max(at, moment)
            self._open = max(0, self._open + change)
        if self._open > 0:
            spent += max(0, now_ns - at)
        self._since = now_ns
        return {self._label: min(1.0, spent / (now_ns - begun))} if spent and now_ns > begun else {}


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
    found.name = name_of(thread.name)
    # autograd's threads have dummy objects, and compute for the loop
    found.ours = found.name.startswith(OURS) or found.name == _LOADER or isinstance(thread, threading._DummyThread)
    return found


class Processes:
    """The processes that this one has started, except its data workers."""

    def __init__(self, workers: Callable[[], Collection[int]]):
        self._workers = workers
        self._files: dict[int, int] = {}
        self._before: dict[int, tuple[str, int]] = {}
        self._since = 0

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
                file = -1
            if tid not in tids:
                del self._files[tid]
                if file >= 0:
                    os.close(file)
        return found

    def works(self, now_ns: int) -> Shares:
        workers = self._workers()
        found: dict[int, tuple[str, int]] = {}
        for pid in self.own():
            if pid in workers or len(found) >= _MOST:
                continue
            if (cpu := tree_cpu(pid)) is not None:
                known = self._before.get(pid)
                found[pid] = (known[0] if known else f"process {program_of(pid)}"), cpu
        shares = _grown(self._before, found, now_ns - self._since if self._since else 0)
        self._before, self._since = found, now_ns
        return shares


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
    return [int(word) for word in raw.split()]


def process_cpu(pid: int) -> int:
    """The CPU ns of a process, by its CPU-time clock (clock_getcpuclockid(3)). Raises OSError."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def tree_cpu(pid: int, depth: int = 2) -> int | None:
    """The CPU ns of a process and of those that it has started, as long as they live; None if it has ended."""
    try:
        total = process_cpu(pid)
    except OSError:
        return None
    for child in children(pid) if depth else ():
        total += tree_cpu(child, depth - 1) or 0
    return total


def program_of(pid: int) -> str:
    """What a process runs: the script or the module of a Python, otherwise the program."""
    words = read_bytes(f"/proc/{pid}/cmdline", 4096).decode("utf-8", "replace").split("\0")
    program = os.path.basename(words[0]) or "?"
    if program.startswith("python"):
        rest = [word for word in words[1:] if word]
        if rest[:1] == ["-m"] and len(rest) > 1:
            return rest[1]
        script = next((word for word in rest if not word.startswith("-")), "")
        if script and rest[0] != "-c":
            return os.path.basename(script)
    return program
