"""Reads the queueing disciplines of the agent's network namespace through netlink. This needs no privilege."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time

from . import qdisc
from .qdisc import Qdisc
from .unreadable import Unreadable, reason_of

_SIOCGIFINDEX = 0x8933
_IFREQ = struct.Struct("@16si20x")
_NETLINK_ROUTE = 0
_SEQUENCE = 1
_DATAGRAM = 1 << 16
"""The size of the receive buffer. The kernel makes its datagrams as long as the buffer, up to 32 KiB."""
_MOST_DATAGRAMS = 256
_PATIENCE_SECONDS = 0.5


def qdiscs() -> tuple[list[Qdisc], int]:
    """All queueing disciplines, and the number of messages that could not be parsed. Raises Unreadable."""
    found: list[Qdisc] = []
    bad = 0
    until = time.monotonic() + _PATIENCE_SECONDS
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as asked:
            asked.settimeout(_PATIENCE_SECONDS)
            asked.send(qdisc.request(_SEQUENCE))
            for _ in range(_MOST_DATAGRAMS):
                part = qdisc.answer(asked.recv(_DATAGRAM), _SEQUENCE)
                found += part.qdiscs
                bad += part.bad
                if part.errno:
                    raise OSError(part.errno, os.strerror(part.errno))
                if part.interrupted:
                    raise Unreadable("changed", "qdiscs")
                if part.done:
                    return found, bad
                if time.monotonic() > until:
                    break
    except TimeoutError:
        raise Unreadable("timeout", "qdiscs") from None
    except OSError as error:
        raise Unreadable(reason_of(error), "qdiscs") from error
    raise Unreadable("huge", "qdiscs")


def index(interface: str) -> int:
    """The index of an interface in the agent's network namespace. Raises Unreadable, with `gone` if there is none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asked:
            answered = fcntl.ioctl(asked, _SIOCGIFINDEX, _IFREQ.pack(interface.encode(), 0))
    except OSError as error:
        raise Unreadable(reason_of(error), interface) from error
    return _IFREQ.unpack(answered)[1]
