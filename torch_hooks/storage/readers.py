"""The tasks that read or write for the loop, and at which mount one is blocked."""

from __future__ import annotations

import errno
import os
import re
import select
import struct
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from ...ledger.mounts import STORE
from ...linux import syscalls
from ...linux.mountinfo import Mount, mapped_at, mapped_bytes
from ...linux.syscalls import (
    ADDRESS,
    CLOSE,
    FAULT,
    FILE,
    METADATA,
    OTHER,
    PATH,
    PATH_AT,
    POLL,
    READ,
    SEND,
    SOCKET,
    SYNC,
    WRITE,
    Call,
    descriptor,
)
from .. import proc
from .mounts import Mounts, store
from .sockets import Listed, peer_of, pidfd_of

_MAPS_AGAIN_NS = 10_000_000_000
_FILES_AGAIN_NS = 2_000_000_000
_MAPS_SHARE = 1000
"""The maps of a process are read for at most this part of the time: they may have thousands of lines."""
_SYNCED_SHARE = 100
"""The same in calls of msync, where each look must read them: what is mapped at an address changes."""
_PROGRAMS = ("/usr/", "/lib", f"{sys.prefix}/", f"{sys.base_prefix}/", f"{sys.exec_prefix}/")
"""Where mapped files belong to programs."""
_PATH_BYTES = 1024
_POLLED = 8
"""The most descriptors of one poll that are looked at."""
_OF_FILES = (READ, WRITE, SYNC, METADATA, SOCKET, SEND)
_OF_SERVERS = (READ, WRITE, SOCKET, SEND)
_KINDS = {CLOSE: WRITE, SOCKET: READ, POLL: READ, SEND: WRITE}
_TARGET = re.compile(rb"^tfd: +(\d+) events: +([0-9a-f]+) ", re.MULTILINE)  # of an epoll, proc_pid_fdinfo(5)


class Seen(NamedTuple):
    """In what a task is blocked."""

    slot: int
    """The mount, by its place in the ledger; -1: it is not blocked at a mount that has one."""
    kind: int = OTHER
    """One of those in linux/syscalls.py."""
    size: int = 0
    """The bytes that it asked for; 0: not known."""
    guess: bool = False


class Place(NamedTuple):
    """Where a call is blocked."""

    mount: Mount | None = None
    path: str = ""
    guess: bool = False
    writes: bool = False
    """Whether a poll waits until it may write."""


class Reader:
    """One task: a data worker (its main thread), or a thread.

    ``folder``: its folder in /proc. ``process``: that of its process.
    """

    __slots__ = (
        "_io",
        "_last",
        "_maps",
        "_maps_due",
        "_open",
        "_open_due",
        "_pidfd",
        "_synced_due",
        "_syscall",
        "folder",
        "gone",
        "process",
        "rchar",
    )

    def __init__(self, folder: str, process: str):
        self.folder = folder
        self.process = process
        self.gone = False
        self._syscall = proc.open_file(f"{folder}/syscall")
        self._io = proc.open_file(f"{folder}/io")
        self._pidfd = -1
        self._last: tuple[int, Mount] | None = None  # descriptor and mount of its last call
        self._maps: dict[str, int] = {}
        self._open: dict[Mount, str] = {}
        self._maps_due = self._open_due = self._synced_due = self.rchar = 0

    def close(self) -> None:
        for fd in (self._syscall, self._io, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._syscall = self._io = self._pidfd = -1

    __del__ = close

    def moved(self, writes: bool) -> int | None:
        """The bytes that its calls have read; or what a disk has read for it, if that is more (mapped files). With
        ``writes``, what it has written instead. None if it has ended, or if the kernel does not tell.
        """
        try:
            words = proc.read(self._io, 256).split()  # proc_pid_io(5): each name is followed by its value
            return int(words[3]) if writes else max(int(words[1]), int(words[9]))
        except (OSError, ValueError, IndexError):
            return None

    def state(self) -> str:
        return proc.stat_field(self.folder, 0)

    def faults(self) -> int:
        """Its page faults that had to wait for a read."""
        return proc.major_faults(self.folder)

    def peer(self, number: int) -> str | None:
        """As `peer_of`."""
        if self._pidfd < 0:
            pid = self.process.rpartition("/")[2]
            self._pidfd = pidfd_of(os.getpid() if pid == "self" else int(pid))
        return peer_of(self._pidfd, number)

    def call(self) -> Call | None:
        """None: it runs. Raises OSError if it has ended, or may not be looked at."""
        return syscalls.parse(proc.read(self._syscall, 256))


class Finder:
    """Finds the mount at which a reader is blocked."""

    def __init__(self, mounts: Mounts, port: Callable[[], int] = lambda: 0):
        """``port``: that of the store through which the ranks meet; 0: there is none."""
        self._mounts = mounts
        self._port = port
        self._listed = Listed()

    def held(self, reader: Reader) -> Seen:
        """A thread of this process was in a page fault while it held Python's lock, so that nobody could look."""
        mount, path = self._mapped(reader)
        return Seen(self._mounts.slot(mount, path) if mount is not None else -1, FAULT)

    def look(self, reader: Reader, of_files: Callable[[int], bool] | None = None) -> tuple[Call | None, Seen | None]:
        """(the call in which it is, where it is blocked). Seen is None if it runs, or if nothing is known.

        ``of_files``: whether a server to which it talks is an object store, if it is in a call of this kind, READ or
        WRITE. None: it is.
        """
        try:
            call = reader.call()
        except OSError as error:
            if error.errno == errno.ESRCH:
                reader.gone = True
                return None, None
            return None, self._guess(reader)
        if call is None:
            return None, None
        if call.about == ADDRESS and time.monotonic_ns() < reader._synced_due:
            return call, None
        mount, path, guess, writes = self._place(reader, call)
        kind = WRITE if writes else _KINDS.get(call.kind, call.kind)
        if mount is None or (mount.fstype == STORE and of_files is not None and not of_files(kind)):
            return call, Seen(-1, call.kind)
        slot = self._mounts.slot(mount, path)
        if call.about == FILE and slot >= 0:
            reader._last = (descriptor(call.first), mount)
        # A program reads the answer of a server in pieces. How much it has asked for is not known.
        return call, Seen(slot, kind, 0 if mount.fstype == STORE else call.size, guess)

    def _place(self, reader: Reader, call: Call) -> Place:
        number = descriptor(call.first)
        if call.kind == CLOSE:  # the descriptor is gone already, but some file systems write when a file is closed
            last = reader._last
            return Place(last[1], guess=True) if last is not None and last[0] == number else Place()
        if call.kind == FAULT:
            return Place(*self._mapped(reader)) if reader.state() == "D" else Place()
        if call.kind == POLL:
            polled = self._polled(reader, call)
            # Who is told of changes alone asks for reads and writes of all its connections.
            out = [one for one, events in polled if events & select.POLLOUT and not events & select.EPOLLET]
            return self._server(reader, out or [one for one, _ in polled])._replace(writes=bool(out))
        if call.kind in _OF_FILES and syscalls.awaits_pipe(proc.read_bytes(f"{reader.folder}/wchan", 64)):
            return Place()
        if call.kind in _OF_FILES and call.about == FILE:
            mount, path = self._mounts.of_descriptor(reader.folder, number)
            if mount is None and call.kind in _OF_SERVERS:
                return self._server(reader, [number])
            if call.name == "sendfile":  # which of two mounts it waits for is not known
                to, _ = self._mounts.of_descriptor(reader.folder, descriptor(call.second))
                return Place(mount, path, to != mount) if to is not None else Place()
            return Place(mount, path)
        if call.about == ADDRESS:
            return Place(*self._mapped_at(reader, call.first))
        if call.about in (PATH, PATH_AT):
            return Place(*self._named(reader, call))
        return Place()

    # -- files

    def _named(self, reader: Reader, call: Call) -> tuple[Mount | None, str]:
        """The file whose path is an argument."""
        address = call.first if call.about == PATH else call.second
        path = os.fsdecode(_memory(reader, address, _PATH_BYTES).partition(b"\0")[0])
        if path.startswith("/"):
            return self._mounts.of_path(path)
        number = descriptor(call.first) if call.about == PATH_AT else -1
        if not path and number >= 0:  # AT_EMPTY_PATH: fstat
            return self._mounts.of_descriptor(reader.folder, number)
        below = proc.link(f"{reader.folder}/fd/{number}" if number >= 0 else f"{reader.folder}/cwd")
        return self._mounts.of_path(f"{below}/{path}") if path and below.startswith("/") else (None, "")

    def _mapped(self, reader: Reader) -> tuple[Mount | None, str]:
        """The mapped files of a task that is blocked in a page fault. The address of the fault is not known."""
        now = time.monotonic_ns()
        if now >= reader._maps_due:
            begun = time.thread_time_ns()
            try:
                sizes = mapped_bytes(_maps(reader))
            except OSError:  # it has ended
                return None, ""
            reader._maps = {
                path: size for path, size in sizes.items() if not path.startswith(_PROGRAMS)
            } or reader._maps
            cost, some = time.thread_time_ns() - begun, bool(reader._maps)  # none: between two files, perhaps
            reader._maps_due = now + (max(_MAPS_AGAIN_NS, _MAPS_SHARE * cost) if some else _MAPS_SHARE * cost // 4)
        return self._mounts.mapped(reader._maps)

    def _mapped_at(self, reader: Reader, address: int) -> tuple[Mount | None, str]:
        """The file that is mapped at an address. In the next call, it may be another one."""
        begun = time.thread_time_ns()
        path = mapped_at(_maps(reader), address)
        reader._synced_due = time.monotonic_ns() + _SYNCED_SHARE * (time.thread_time_ns() - begun)
        return self._mounts.of_path(path) if path else (None, "")

    def _guess(self, reader: Reader) -> Seen | None:
        """Where a task that may not be looked at is blocked: by its open files, and by what it has read."""
        state = reader.state()
        before, reader.rchar = reader.rchar, reader.moved(writes=False) or 0
        if state not in ("S", "D"):
            return None
        if state == "S" and (not before or reader.rchar <= before):
            return Seen(-1)
        now = time.monotonic_ns()
        if now >= reader._open_due:
            reader._open_due = now + _FILES_AGAIN_NS
            try:
                reader._open = self._mounts.reading(reader.process)
            except OSError:
                reader._open = {}
        if len(reader._open) != 1:
            return Seen(-1)
        [(mount, path)] = reader._open.items()
        return Seen(self._mounts.slot(mount, path), READ, 0, True)

    # -- sockets

    def _polled(self, reader: Reader, call: Call) -> list[tuple[int, int]]:
        """(descriptor, events) of what a poll or an epoll waits for: see poll(2)."""
        if call.name.startswith("epoll"):
            info = proc.read_bytes(f"{reader.folder}/fdinfo/{descriptor(call.first)}", 2048)
            return [(int(number), int(events, 16)) for number, events in _TARGET.findall(info)[:_POLLED]]
        if "poll" not in call.name:  # select has sets of bits
            return []
        raw = _memory(reader, call.first, 8 * min(call.second, _POLLED))
        return [struct.unpack_from("=ih", raw, at) for at in range(0, len(raw) - 7, 8)]

    def _server(self, reader: Reader, numbers: list[int]) -> Place:
        """The server at the other end of the first of these descriptors that is a TCP connection."""
        for number in numbers:
            link = proc.link(f"{reader.folder}/fd/{number}")
            if link.startswith("socket:["):
                peer, guess = reader.peer(number), False
                if peer is None:
                    peer, guess = self._listed.peer(reader.process, int(link[8:-1]))
                if peer and int(peer.rpartition(":")[2]) != self._port():
                    return Place(store(peer), guess=guess)
        return Place()


def _maps(reader: Reader) -> bytes:
    """This may wait for a lock of that process. So Python's lock is released meanwhile. Raises OSError."""
    with open(f"{reader.process}/maps", "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(1 << 16), b""))


def moved_by(folder: str) -> int:
    """The bytes that a task has read and written, by calls and for mapped files; 0 if the kernel does not tell."""
    words = proc.read_bytes(f"{folder}/io", 256).split()
    return sum(int(words[at]) for at in (1, 3, 9)) if len(words) > 9 else 0


def _memory(reader: Reader, address: int, size: int) -> bytes:
    """Reads the memory of a task. It may wait for a lock of that process, so Python's lock is released meanwhile."""
    try:
        fd = os.open(f"{reader.folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, address)
        finally:
            os.close(fd)
    except (OSError, OverflowError):
        return b""
