"""The TCP connections of a rank that do not progress, and its own addresses."""

from __future__ import annotations

import os

from ...linux import tcp
from ...linux.tcp import TcpSocket
from ...verdict.facts import Connection
from ..files import Unreadable, names, read

MOST_FILES = 4096
MOST_CONNECTIONS = 64


def of(procfs: str, pid: int) -> tuple[tuple[Connection, ...], tuple[str, ...]]:
    """(connections without progress, addresses). Both empty if they cannot be read."""
    own = _inodes(procfs, pid)
    sockets = [one for one in _sockets(procfs, pid) if one.inode in own]
    stuck = [Connection(one.local, one.remote, one.unacknowledged, one.retries) for one in sockets if one.stuck]
    addresses = {one.local for one in sockets if one.established and not one.local.startswith(("127.", "::1"))}
    return tuple(stuck[:MOST_CONNECTIONS]), tuple(sorted(addresses))


def _sockets(procfs: str, pid: int) -> list[TcpSocket]:
    found: list[TcpSocket] = []
    for name in ("tcp", "tcp6"):
        try:
            found += tcp.parse(read(f"{procfs}/{pid}/net/{name}"))
        except Unreadable:
            continue
    return found


def _inodes(procfs: str, pid: int) -> set[int]:
    folder = f"{procfs}/{pid}/fd"
    found: set[int] = set()
    try:
        descriptors = names(folder)[:MOST_FILES]
    except Unreadable:
        return found
    for descriptor in descriptors:
        try:
            target = os.readlink(f"{folder}/{descriptor}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found
