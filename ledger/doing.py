"""What a process is doing, from the system call in which its main thread is."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..linux import syscalls
from ..linux.syscalls import Call
from .clock import signed_ticks

DOING: tuple[str, ...] = ("running", "lock", "sleep", "read", "network", "other")
"""What a data worker does: `running` includes waiting for a CPU; `lock`: a lock that processes share; `read`: it reads,
opens or looks up a file, also by a page fault; `network`: a socket, or it polls."""

_KINDS = {
    syscalls.FAULT: "read",  # a page that is being read
    syscalls.METADATA: "read",
    syscalls.QUEUE: "read",
    syscalls.LOCK: "lock",
    syscalls.SLEEP: "sleep",
    syscalls.SOCKET: "network",
    syscalls.SEND: "network",
    syscalls.POLL: "network",
}
_PRIVATE = 128  # FUTEX_PRIVATE_FLAG: the threads of one process wait for one another
_WAITS_FOR_LOCK = (7, 38)  # F_SETLKW, F_OFD_SETLKW


def start_ticks(pid: int, proc: str = "/proc") -> int:
    """When a process started, field 22 of its `stat`; 0 if it has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return signed_ticks(int(file.read(4096).rpartition(b")")[2].split()[19]))
    except (OSError, ValueError, IndexError):
        return 0


def state(pid: int, proc: str = "/proc") -> str:
    """The state of a process as one letter, such as `D`; empty if it has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return file.read(4096).rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def doing(pid: int, proc: str = "/proc") -> str | None:
    """One of DOING; None if the process has ended or may not be looked at.

    Also None if it polls one pipe and nothing else: a data worker without work awaits a request in this way. A process
    that polls several pipes waits for a program.
    """
    try:
        fd = os.open(f"{proc}/{pid}/syscall", os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(fd, 256)
        finally:
            os.close(fd)
    except OSError:
        return None
    process = f"{proc}/{pid}"
    call = syscalls.parse(line)
    if call is not None and (pipes := polled_pipes(call, process)):
        return "other" if pipes > 1 else None
    found = parse(line, lambda number: _target(f"{process}/fd/{number}"))
    return "other" if found == "read" and _awaits_pipe(process) else found


def polled_pipes(call: syscalls.Call, process: str) -> int:
    """For how many pipes a process polls; 0 if it also polls something else. ``process``: its folder in /proc."""
    polled = syscalls.polled(call, process)
    return len(polled) if all(_target(f"{process}/fd/{number}").startswith("pipe:") for number in polled) else 0


def _awaits_pipe(process: str) -> bool:
    try:
        with open(f"{process}/wchan", "rb", buffering=0) as file:
            return syscalls.awaits_pipe(file.read(64))
    except OSError:
        return False


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def parse(line: bytes, target: Callable[[int], str], machine: str = os.uname().machine) -> str | None:
    """``line``: of /proc/<pid>/syscall. ``target``: what a descriptor of the process refers to, as its link says."""
    if line.startswith(b"running"):
        return "running"
    call = syscalls.parse(line, machine)
    return None if call is None else kind_of(call, target)


def kind_of(call: Call, target: Callable[[int], str]) -> str:
    """One of DOING. ``target``: as in `parse`."""
    if call.name == "futex":
        return "other" if call.second & _PRIVATE else "lock"
    if call.kind == syscalls.FILE_LOCK:
        return "lock" if call.name == "flock" or call.second in _WAITS_FOR_LOCK else "read"
    if call.kind == syscalls.READ:
        read = target(call.file)
        return "network" if read.startswith("socket:") else "other" if read.startswith("pipe:") else "read"
    return _KINDS.get(call.kind, "other")
