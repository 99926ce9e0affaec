"""The kernel's answer to RTM_GETQDISC: the queueing disciplines of all interfaces, with their counters.

Format: linux/netlink.h, linux/rtnetlink.h and linux/gen_stats.h, in the byte order of the machine. See rtnetlink(7).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from .unreadable import Unreadable

NEW_QDISC, GET_QDISC = 36, 38
_ERROR, _DONE = 2, 3
_REQUEST, _DUMP, _INTERRUPTED = 0x01, 0x300, 0x10

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_TCMSG = struct.Struct("=BxxxiIII")  # family, interface, handle, parent, info
_ATTRIBUTE = struct.Struct("=HH")
_QUEUE = struct.Struct("=IIIII")  # packets, bytes, drops, requeues, overlimits
_ERRNO = struct.Struct("=i")
_KIND, _STATS2, _STATS_QUEUE = 1, 7, 3
_NESTED = 0x3FFF  # mask that removes the flags for nested attributes and network byte order


class Qdisc(NamedTuple):
    interface: int  # index of the interface
    handle: int
    parent: int
    kind: str
    backlog_bytes: int
    overlimits: int  # 32 bits


class Reply(NamedTuple):
    """One datagram of an answer, which may have several."""

    qdiscs: list[Qdisc]
    done: bool
    errno: int  # 0 if there is no error
    interrupted: bool  # whether the qdiscs were changed during the answer
    bad: int  # number of messages that cannot be parsed


def request(sequence: int) -> bytes:
    """The message that asks for the qdiscs of all interfaces."""
    length = _HEADER.size + _TCMSG.size
    return _HEADER.pack(length, GET_QDISC, _REQUEST | _DUMP, sequence, 0) + _TCMSG.pack(0, 0, 0, 0, 0)


def answer(data: bytes, sequence: int) -> Reply:
    """Parses one datagram. Raises Unreadable if it is not a netlink answer."""
    qdiscs: list[Qdisc] = []
    done, errno, interrupted, bad = False, 0, False, 0
    for kind, flags, number, body in _messages(data):
        if number != sequence:
            continue  # the answer to an earlier request
        interrupted = interrupted or bool(flags & _INTERRUPTED)
        if kind in (_DONE, _ERROR):
            done = True
            errno = -_ERRNO.unpack_from(body)[0] if len(body) >= _ERRNO.size else 0
        elif kind == NEW_QDISC:
            try:
                qdisc = _qdisc(body)
            except (struct.error, Unreadable):
                bad += 1
            else:
                qdiscs += [qdisc] if qdisc else []
    return Reply(qdiscs, done, errno, interrupted, bad)


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    if not data:
        raise Unreadable("empty")
    at = 0
    while at < len(data):
        if at + _HEADER.size > len(data):
            raise Unreadable("garbage")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise Unreadable("garbage")
        yield kind, flags, sequence, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _qdisc(body: bytes) -> Qdisc | None:
    """Parses one qdisc. Returns None if it has no counters."""
    _, interface, handle, parent, _ = _TCMSG.unpack_from(body)
    attributes = _attributes(body[_TCMSG.size :])
    kind = attributes.get(_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
    if not kind or not kind.isprintable() or len(kind) > 16:
        raise Unreadable("garbage")
    queue = _attributes(attributes.get(_STATS2, b"")).get(_STATS_QUEUE)
    if queue is None:
        return None
    _, backlog, _, _, overlimits = _QUEUE.unpack_from(queue)
    return Qdisc(interface, handle, parent, kind, backlog, overlimits)


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if not _ATTRIBUTE.size <= length <= len(data) - at:
            raise Unreadable("garbage")
        found[kind & _NESTED] = data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return found
