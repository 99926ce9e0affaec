"""The TCP connections of this process, and what each has moved.

They belong to others: a descriptor is only asked, never duplicated or closed. It may be closed, or stand for another
connection, at any time. Then the last values remain.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

from ...linux import tcp_info
from ...linux.tcp_info import TcpInfo
from ..proc import numbers_in

MOST = 64
"""The most connections that are looked at: those that have moved most."""
SCANNED = 512
"""The most descriptors that one scan asks. The next scan goes on behind them."""
_LISTENING = 10  # TCP_LISTEN
_NAME_BYTES = 128

try:
    import ctypes

    # Unlike a PyDLL, a CDLL releases Python's lock: the kernel may wait until a thread that sends on the connection is
    # done (lock_sock_fast in tcp_get_info).
    _libc = ctypes.CDLL(None, use_errno=True)
    _getsockopt = _libc.getsockopt
    _getsockopt.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    # One look runs at a time.
    _buffer, _size = ctypes.create_string_buffer(tcp_info.BYTES), ctypes.c_uint32()
    _size_address = ctypes.byref(_size)
    AVAILABLE = True
except (ImportError, AttributeError, OSError):  # this Python has no ctypes
    AVAILABLE = False


def follows(now: TcpInfo, before: TcpInfo) -> bool:
    """Whether both can be of the same connection."""
    return now.sent >= before.sent and now.received >= before.received


class Connection:
    """One connection."""

    __slots__ = ("_base", "counts", "fd", "last", "local", "ports", "remote", "seen", "waited")

    def __init__(self, fd: int, local: tuple[str, int], remote: tuple[str, int], base: TcpInfo, last: TcpInfo):
        self.fd = fd
        self.local, self.remote = local[0], remote[0]
        self.ports = local[1], remote[1]
        self._base = base
        self.seen = base
        """The values up to which the ledger has it."""
        self.last = last
        self.waited = False
        """Whether it has moved something during a wait for a collective."""
        self.counts = False
        """Whether it belongs to the rank's communication."""

    @property
    def names(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return (self.local, self.ports[0]), (self.remote, self.ports[1])

    def goes_on(self, told: TcpInfo | None) -> bool:
        """Whether these can be its next values. Another connection with this descriptor has moved less, mostly; a scan
        also compares the names."""
        return told is not None and follows(told, self.last)

    @property
    def moved(self) -> int:
        """Bytes, the larger direction."""
        return max(self.last.sent - self._base.sent, self.last.received - self._base.received)


class Sockets:
    """The connections of this process. To iterate gives those that move most. Not thread-safe."""

    def __init__(self, closed: Callable[[Connection], None]):
        """``closed`` is called with each connection that is no longer there."""
        self._open: dict[int, Connection] = {}
        self._moving: list[Connection] = []
        self._closed = closed
        self._next = 0  # the descriptor with which the next scan begins
        self._complete = False  # whether all descriptors were scanned once

    def scan(self) -> None:
        """Looks for connections among the descriptors of this process."""
        fds = sorted(numbers_in("/proc/self/fd"))
        for fd in self._open.keys() - set(fds):
            self._close(self._open[fd])
        asked = [fd for fd in fds if fd >= self._next][:SCANNED]
        whole = not asked or asked[-1:] == fds[-1:]
        self._next = 0 if whole else asked[-1] + 1
        moved: dict[Connection, int] = {}
        for fd in asked:
            told = _info(fd)
            known = self._open.get(fd)
            if known is not None and not (known.goes_on(told) and _names(fd) == known.names):
                self._close(known)
                known = None
            if told is None or told.state == _LISTENING:
                continue
            if known is None:
                if names := _names(fd):
                    # One that is new since the first scan counts from its beginning.
                    base = told if not self._complete else TcpInfo(told.state, *[0] * 9)
                    known = self._open[fd] = Connection(fd, *names, base, told)
                    moved[known] = known.moved
            else:
                moved[known] = told.sent + told.received - known.last.sent - known.last.received
                known.last = told
        self._complete |= whole
        for one in self._open.values():
            moved.setdefault(one, 0)
        self._moving = sorted(moved, key=lambda one: (one.counts, moved[one]), reverse=True)[:MOST]

    def read(self) -> None:
        """Brings the connections that move most up to date."""
        for one in list(self._moving):
            told = _info(one.fd)
            if told is not None and one.goes_on(told):
                one.last = told
            else:
                self._close(one)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._moving)

    def _close(self, one: Connection) -> None:
        del self._open[one.fd]
        if one in self._moving:
            self._moving.remove(one)
        self._closed(one)


def _info(fd: int) -> TcpInfo | None:
    """None if it is not a TCP connection."""
    _size.value = tcp_info.BYTES
    if _getsockopt(fd, socket.IPPROTO_TCP, socket.TCP_INFO, _buffer, _size_address):
        return None
    return tcp_info.parse(_buffer.raw[: _size.value])


def _names(fd: int) -> tuple[tuple[str, int], tuple[str, int]] | None:
    """(address, port) of both ends; None if it is not connected."""
    local, remote = _name(_libc.getsockname, fd), _name(_libc.getpeername, fd)
    return (local, remote) if local and remote else None


def _name(ask: Callable[[int, object, object], int], fd: int) -> tuple[str, int] | None:
    _size.value = _NAME_BYTES
    if ask(fd, _buffer, _size_address):
        return None
    raw = _buffer.raw[: _size.value]
    family = struct.unpack_from("=H", raw)[0] if len(raw) >= 2 else 0
    if family == socket.AF_INET:
        return socket.inet_ntop(family, raw[4:8]), int.from_bytes(raw[2:4], "big")
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, raw[8:24]).removeprefix("::ffff:"), int.from_bytes(raw[2:4], "big")
    return None
