"""What a node knows about the processes of a run besides their ledgers. Plain data, which the agent or a command fills.

None and an empty string mean that the value is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

WORKS_SHARE, WORKS_BYTES = 0.05, 1 << 18
"""A process that uses more of a core than this, or moves more bytes, is at work. whyidle itself writes its ledger, and
reads some files of /proc."""


class Thread(NamedTuple):
    """One thread of a process."""

    tid: int
    name: str
    state: str  # as in /proc/<pid>/stat: R, S, D, T, t, Z, X
    wchan: str  # the function of the kernel in which it waits
    syscall: str  # its system call, such as `read on a pipe`


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this node, observed for a short time."""

    pid: int
    state: str = ""
    """The state of its main thread, as in /proc/<pid>/stat. "X": it has ended."""
    threads: tuple[Thread, ...] = ()
    cores: float | None = None
    """CPU time per second while it was observed."""
    moved: int | None = None
    """Bytes that it read and wrote by system calls while it was observed."""

    @property
    def main(self) -> Thread | None:
        return next((thread for thread in self.threads if thread.tid == self.pid), None)

    @property
    def stopped(self) -> bool:
        return self.state in ("T", "t")

    @property
    def ended(self) -> bool:
        return self.state in ("Z", "X")

    @property
    def works(self) -> bool | None:
        """Whether it used a CPU, moved data or waited for a disk. None: not known."""
        if self.state in ("R", "D"):
            return True
        if self.cores is None:
            return None
        return self.cores > WORKS_SHARE or (self.moved or 0) > WORKS_BYTES


DOES: dict[str, str] = {
    "running": "is on a CPU or queues for one",
    "lock": "waits for a lock of another process",
    "sleep": "sleeps",
    "read": "reads a file",
    "network": "waits for the network",
    "other": "is blocked",
    "stopped": "is stopped, by a signal or a debugger",
    "gone": "is gone",
}
"""What a data worker does -> how a sentence says it."""


class Owing(NamedTuple):
    """The data worker that owes a rank the batch for which it waits."""

    pid: int  # as seen on its node
    does: str  # one of DOES


class Connection(NamedTuple):
    """A TCP connection whose other end does not acknowledge what was sent."""

    local: str  # address without the port
    remote: str
    unacknowledged: int  # bytes
    retries: int  # how often the same data was sent again


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one rank."""

    process: Process | None = None
    workers: tuple[Process, ...] = ()
    """Its data loader workers, and other processes that it started."""
    owing: Owing | None = None
    connections: tuple[Connection, ...] = ()
    """Those that do not progress."""
    addresses: tuple[str, ...] = ()
    """Its own addresses, without those of the loopback interface."""
    gpu_busy: float | None = None
    """The share of time in which its GPU ran kernels while it was observed."""


NOTHING = Facts()
