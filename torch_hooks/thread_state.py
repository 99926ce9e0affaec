"""What the kernel says of threads of this process: whether they run, are blocked or wait for Python's lock, and for how
long they have computed."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Sequence

from . import proc
from .interpreter import is_of_interpreter
from .threads import thread_clock

RUNS, BLOCKED, LOCK, HELD = range(4)
"""HELD: it had a CPU when a look was due, but has gone on since: see `Lateness.how`."""
UNREADABLE = b"?"
"""What stands for a call that the kernel does not tell."""
RECENT, ENOUGH = 32, 6
"""The most and the fewest looks of which a share is taken."""
_NEARLY = 0.75
Spent = dict[int, tuple[str, int]]
"""Thread -> its name, and how many ns it has had a CPU or queued for one: it computes, even on busy cores."""


class ThreadState:
    """A thread of this process, as the kernel sees it. All methods raise OSError if it has ended."""

    __slots__ = ("_schedstat", "_syscall", "call", "tid")

    def __init__(self, tid: int):
        self.tid = tid
        self.call = b""
        """What the kernel said at the last look: a line of proc_pid_syscall(5)."""
        # Kept open: to close a file gives Python's lock up, and then several reads are of different moments.
        self._schedstat = proc.open_file(f"/proc/self/task/{tid}/schedstat")
        self._syscall: int | None = None

    def __del__(self) -> None:
        for fd in (self._schedstat, self._syscall):
            if fd is not None and fd >= 0:
                os.close(fd)

    def state(self) -> int:
        """One of RUNS, BLOCKED, and LOCK if it is blocked on a lock of the interpreter."""
        if self._syscall is None:
            self._syscall = proc.open_file(f"/proc/self/task/{self.tid}/syscall")
        try:
            self.call = proc.read(self._syscall, 256)
            fields = self.call.split()
        except OSError:  # this kernel does not tell
            self.call = UNREADABLE
            stat = proc.read_file(f"/proc/self/task/{self.tid}/stat", 512)
            return BLOCKED if stat.rpartition(")")[2].split()[:1] in (["S"], ["D"]) else RUNS
        if fields[:1] == [b"running"]:
            return RUNS
        if len(fields) < 2 or fields[0] == b"-1":  # a page fault
            return BLOCKED
        return LOCK if is_of_interpreter(int(fields[1], 16)) else BLOCKED

    def spent(self) -> int:
        """How many ns it has had a CPU, or queued for one, if that is known."""
        return time.clock_gettime_ns(thread_clock(self.tid)) + self._fields()[1]

    def turns(self) -> int:
        """How often it has got a CPU."""
        return self._fields()[2]

    def faults(self) -> int:
        """Its page faults that had to wait for a read."""
        return proc.major_faults(f"/proc/self/task/{self.tid}")

    def _fields(self) -> list[int]:
        """CPU ns, ns in which it queued for a CPU, and turns; zeros if they are not known."""
        fields = proc.read(self._schedstat, 64).split() if self._schedstat >= 0 else ()
        return [int(field) for field in fields] if len(fields) == 3 else [0, 0, 0]


class Hidden:
    """Of the training thread: whether the calls in which it keeps Python's lock are blocked. A look that waits for the
    lock cannot see that. It comes after the call, when the thread is on a CPU again."""

    def __init__(self) -> None:
        self._looks: deque[tuple[bool, bool, int, int]] = deque(maxlen=RECENT)

    def add(self, kept: bool, blocked: bool, passed: int, spent: int) -> None:
        """A look. ``kept``: it has waited for a call that kept the lock; ``blocked``: it saw the thread blocked.
        ``passed``: the ns since the look before, in ``spent`` of which the thread had a CPU, or queued for one."""
        self._looks.append((kept, blocked, passed, spent))

    def are_blocked(self) -> bool:
        """Whether such calls are blocked for most of their time: what the thread was blocked, and no look has seen, is
        about as much as they take."""
        kept, blocked, passed, spent = zip(*self._looks, strict=True) if self._looks else ((), (), (), ())
        if len(kept) < ENOUGH or sum(passed) <= 0:
            return False
        hidden = 1 - sum(spent) / sum(passed) - at_most(blocked)
        return hidden >= _NEARLY * sum(kept) / len(kept)


def at_most(looks: Sequence[bool]) -> float:
    """The share of looks that are true, and its standard error."""
    number = max(1, len(looks))
    share = sum(looks) / number
    return min(1.0, share + (share * (1 - share) / number) ** 0.5)


def busiest(before: Spent, now: Spent) -> tuple[str, int]:
    """The threads that have computed for most ns in between, and these ns. Threads with one name count together: some
    programs start one for each save."""
    spent: Counter[str] = Counter()
    for tid, (name, ns) in now.items():
        spent[name] += max(0, ns - before.get(tid, (name, 0))[1])
    return max(spent.items(), key=lambda one: one[1], default=("", 0))
