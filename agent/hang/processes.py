"""What processes do: their state, and where their threads wait, from /proc.

Values of the training are never read: of an open file only its kind is told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from ...linux import syscalls
from ...verdict.facts import Process, Thread
from ..files import Unreadable, names, read
from ..parsers import pidio, pidstat

MOST_THREADS = 256
_TICKS = os.sysconf("SC_CLK_TCK")
_KINDS: tuple[tuple[str, str], ...] = (
    ("socket:", "a socket"),
    ("pipe:", "a pipe"),
    ("anon_inode:", "the kernel"),
    ("/dev/nvidia", "a GPU"),
    ("/dev/", "a device"),
    ("/", "a file"),
)
"""Beginning of the name of an open file -> its kind."""
_Used = tuple[float, int] | None


class Watch:
    """Observes processes from its creation until `processes` is called."""

    def __init__(self, procfs: str, pids: Iterable[int]):
        self._procfs = procfs
        self._begun = time.monotonic()
        self._before = {pid: self._used(pid) for pid in pids}

    def processes(self) -> dict[int, Process]:
        seconds = time.monotonic() - self._begun
        return {pid: self._process(pid, before, seconds) for pid, before in self._before.items()}

    def _process(self, pid: int, before: _Used, seconds: float) -> Process:
        try:
            state = pidstat.parse(read(f"{self._procfs}/{pid}/stat")).state
        except Unreadable as error:
            return Process(pid, "" if error.reason == "denied" else "X")
        after = self._used(pid)
        if before is None or after is None or state == "Z":
            return Process(pid, state, self._threads(pid))
        cores = max(0.0, after[0] - before[0]) / max(seconds, 1e-3)
        return Process(pid, state, self._threads(pid), cores, after[1] - before[1] if after[1] >= before[1] else None)

    def _used(self, pid: int) -> _Used:
        """CPU seconds, and bytes that were read and written."""
        base = f"{self._procfs}/{pid}"
        try:
            stat = pidstat.parse(read(f"{base}/stat"))
        except Unreadable:
            return None
        try:
            io = pidio.parse(read(f"{base}/io"))
            moved = io.syscall_read + io.syscall_write
        except Unreadable:
            moved = 0
        return (stat.user_ticks + stat.system_ticks) / _TICKS, moved

    def _threads(self, pid: int) -> tuple[Thread, ...]:
        """The main thread first."""
        try:
            tids = [tid for tid in names(f"{self._procfs}/{pid}/task") if tid.isdigit()]
        except Unreadable:
            return ()
        tids.sort(key=lambda tid: (tid != str(pid), int(tid)))
        return tuple(filter(None, (self._thread(pid, tid) for tid in tids[:MOST_THREADS])))

    def _thread(self, pid: int, tid: str) -> Thread | None:
        base = f"{self._procfs}/{pid}/task/{tid}"
        try:
            state = pidstat.parse(read(f"{base}/stat")).state
        except Unreadable:
            return None
        wchan = _wchan(base)
        return Thread(int(tid), _text(f"{base}/comm"), state, wchan, self._call(pid, base, wchan))

    def _call(self, pid: int, base: str, wchan: str) -> str:
        try:
            call = syscalls.parse(read(f"{base}/syscall"))
        except Unreadable:
            return ""
        if call is None:
            return ""
        kind = _kind(f"{self._procfs}/{pid}/fd/{call.file}") if call.file >= 0 else ""
        if syscalls.awaits_pipe(wchan.encode()):  # a named one
            kind = "a pipe"
        return f"{call.name} on {kind}" if kind else call.name


def _wchan(base: str) -> str:
    name = _text(f"{base}/wchan")
    return "" if name == "0" else name


def _kind(path: str) -> str:
    try:
        target = os.readlink(path)  # not stat: a file server that does not answer would block it
    except OSError:
        return ""
    return next((kind for beginning, kind in _KINDS if target.startswith(beginning)), "")


def _text(path: str) -> str:
    try:
        text = read(path, 4096).decode("utf-8", "replace").strip()[:64]
    except Unreadable:
        return ""
    return text if text.isprintable() else ""
