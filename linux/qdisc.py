"""The kernel's answer to RTM_GETQDISC: the queueing disciplines of all interfaces, with their counters.

Format: linux/rtnetlink.h and linux/gen_stats.h. See rtnetlink(7).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import netlink
from .netlink import attributes
from .unreadable import Unreadable

NEW_QDISC, GET_QDISC = 36, 38
ROOT, INGRESS = 0xFFFF_FFFF, 0xFFFF_FFF1
"""Instead of a parent's handle."""

_TCMSG = struct.Struct("=BxxxiIII")  # family, interface, handle, parent, info
_QUEUE = struct.Struct("=IIIII")  # packets, bytes, drops, requeues, overlimits
_KIND, _OPTIONS, _STATS2, _STATS_QUEUE = 1, 2, 7, 3


class Qdisc(NamedTuple):
    interface: int  # index of the interface
    handle: int
    parent: int
    kind: str
    backlog_bytes: int
    overlimits: int  # 32 bits
    options: bytes = b""  # see shaping.py


class Reply(NamedTuple):
    """One datagram of an answer, which may have several."""

    qdiscs: list[Qdisc]
    done: bool
    errno: int  # 0 if there is no error
    interrupted: bool  # whether the qdiscs were changed during the answer
    bad: int  # number of messages that cannot be parsed


def request(sequence: int) -> bytes:
    """The message that asks for the qdiscs of all interfaces."""
    return netlink.request(GET_QDISC, _TCMSG.pack(0, 0, 0, 0, 0), sequence=sequence)


def answer(data: bytes, sequence: int) -> Reply:
    """Parses one datagram. Raises Unreadable if it is not a netlink answer."""
    qdiscs: list[Qdisc] = []
    done, errno, interrupted, bad = False, 0, False, 0
    for message in netlink.messages(data):
        if message.sequence != sequence:
            continue  # the answer to an earlier request
        interrupted = interrupted or message.interrupted
        if message.kind in (netlink.DONE, netlink.ERROR):
            done = True
            errno = netlink.error_of(message)
        elif message.kind == NEW_QDISC:
            try:
                qdisc = _qdisc(message.body)
            except (struct.error, Unreadable):
                bad += 1
            else:
                qdiscs += [qdisc] if qdisc else []
    return Reply(qdiscs, done, errno, interrupted, bad)


def _qdisc(body: bytes) -> Qdisc | None:
    """Parses one qdisc. Returns None if it has no counters."""
    _, interface, handle, parent, _ = _TCMSG.unpack_from(body)
    found = attributes(body[_TCMSG.size :])
    kind = found.get(_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
    if not kind or not kind.isprintable() or len(kind) > 16:
        raise Unreadable("garbage")
    queue = attributes(found.get(_STATS2, b"")).get(_STATS_QUEUE)
    if queue is None:
        return None
    _, backlog, _, _, overlimits = _QUEUE.unpack_from(queue)
    return Qdisc(interface, handle, parent, kind, backlog, overlimits, found.get(_OPTIONS, b""))
