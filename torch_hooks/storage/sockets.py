"""The other end of a TCP connection of a process that this one has started."""

from __future__ import annotations

import os
import socket
import struct
import time

from ...linux.tcp import peers

_LISTED_SHARE = 2000
"""The list of all connections is read for at most this part of the time. It takes some ms, because the kernel walks
through its whole table of connections."""

try:
    import ctypes

    _libc = ctypes.PyDLL(None, use_errno=True)
    _PIDFD_GETFD = 438  # the same on all machines

    def peer_of(pidfd: int, number: int) -> str | None:
        """The address and port at the other end of a descriptor; empty if it is not a TCP connection; None if it is not
        known, because this process may not have a copy of the descriptor (pidfd_getfd(2), Linux 5.6).

        The copy exists for some µs. A socket object of Python could change whether the connection blocks.
        """
        fd = _libc.syscall(ctypes.c_long(_PIDFD_GETFD), ctypes.c_int(pidfd), ctypes.c_int(number), ctypes.c_uint(0))
        if fd < 0:
            return None
        try:
            kind, name = ctypes.c_int(), ctypes.create_string_buffer(128)
            size = ctypes.c_uint32(ctypes.sizeof(kind))
            _libc.getsockopt(fd, socket.SOL_SOCKET, socket.SO_TYPE, ctypes.byref(kind), ctypes.byref(size))
            size = ctypes.c_uint32(128)
            if kind.value != socket.SOCK_STREAM or _libc.getpeername(fd, name, ctypes.byref(size)):
                return ""
            return address_of(name.raw)
        finally:
            _libc.close(fd)

except (ImportError, AttributeError, OSError):  # this Python has no ctypes

    def peer_of(pidfd: int, number: int) -> str | None:
        """Not possible without ctypes."""
        return None


def address_of(name: bytes) -> str:
    """``name``: a struct sockaddr. Empty if it is of another family than IP."""
    family, port = struct.unpack_from("=H", name)[0], struct.unpack_from("!H", name, 2)[0]
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(family, name[4:8])}:{port}"
    if family == socket.AF_INET6:
        address = socket.inet_ntop(family, name[8:24])
        return f"{address[7:]}:{port}" if address.startswith("::ffff:") else f"[{address}]:{port}"
    return ""


class Listed:
    """The connections as /proc/<pid>/net/tcp lists them, for where `peer_of` may not look."""

    def __init__(self) -> None:
        self._peers: dict[int, str] = {}
        self._due = 0
        self._last = ""

    def peer(self, folder: str, inode: int) -> tuple[str, bool]:
        """(address and port, whether they are those of another connection that was found last)."""
        now = time.monotonic_ns()
        if inode not in self._peers and now >= self._due:
            begun = time.thread_time_ns()
            self._peers = {}
            for name in ("tcp", "tcp6"):
                try:
                    with open(f"{folder}/net/{name}", "rb", buffering=0) as file:
                        self._peers |= peers(b"".join(iter(lambda: file.read(1 << 16), b"")))
                except OSError:  # no IPv6
                    pass
            self._due = now + _LISTED_SHARE * (time.thread_time_ns() - begun)
        found = self._peers.get(inode, "")
        self._last = found or self._last
        return self._last, not found


def pidfd_of(pid: int) -> int:
    """A descriptor of a process; -1 if there is none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1
