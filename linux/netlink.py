"""Messages of netlink(7): questions, the parts of an answer, and attributes. Format: linux/netlink.h.

Everything is in the byte order of the machine.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from .unreadable import Unreadable, reason_of

ROUTE, RDMA = 0, 20
"""Protocols."""
REQUEST, DUMP = 0x01, 0x300
ERROR, DONE = 2, 3
_INTERRUPTED = 0x10

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")
_ERRNO = struct.Struct("=i")
_NESTED = 0x3FFF  # mask that removes the flags for nested attributes and network byte order
_SEQUENCE = 1
_DATAGRAM = 1 << 16
"""The size of the receive buffer. The kernel makes its datagrams as long as the buffer, up to 32 KiB."""
_MOST_DATAGRAMS = 256
_PATIENCE_SECONDS = 0.5


class Message(NamedTuple):
    kind: int
    interrupted: bool
    """Whether what was asked for has changed during the answer."""
    sequence: int
    body: bytes


def request(kind: int, body: bytes, flags: int = REQUEST | DUMP, sequence: int = _SEQUENCE) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value.ljust(-(-len(value) // 4) * 4, b"\0")


def messages(data: bytes) -> Iterator[Message]:
    """The messages of one datagram. Raises Unreadable if it is not a netlink answer."""
    if not data:
        raise Unreadable("empty")
    at = 0
    while at < len(data):
        if at + _HEADER.size > len(data):
            raise Unreadable("garbage")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise Unreadable("garbage")
        yield Message(kind, bool(flags & _INTERRUPTED), sequence, data[at + _HEADER.size : at + length])
        at += (length + 3) & ~3


def attributes(data: bytes) -> dict[int, bytes]:
    return dict(each_attribute(data))


def each_attribute(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Raises Unreadable."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if not _ATTRIBUTE.size <= length <= len(data) - at:
            raise Unreadable("garbage")
        yield kind & _NESTED, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def error_of(message: Message) -> int:
    """The errno of a message of kind DONE or ERROR; 0 if there was no error."""
    return -_ERRNO.unpack_from(message.body)[0] if len(message.body) >= _ERRNO.size else 0


def ask(protocol: int, question: bytes, what: str, whole: bool = True) -> list[bytes]:
    """The bodies of an answer. ``whole``: it has several parts, the last of which is DONE. Raises Unreadable."""
    found: list[bytes] = []
    until = time.monotonic() + _PATIENCE_SECONDS
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as asked:
            asked.settimeout(_PATIENCE_SECONDS)
            asked.send(question)
            for _ in range(_MOST_DATAGRAMS):
                for message in messages(asked.recv(_DATAGRAM)):
                    if message.sequence != _SEQUENCE:
                        continue
                    if message.interrupted:
                        raise Unreadable("changed", what)
                    if message.kind in (DONE, ERROR):
                        if number := error_of(message):
                            raise Unreadable(reason_of(OSError(number, "")), what)
                        return found
                    found.append(message.body)
                    if not whole:
                        return found
                if time.monotonic() > until:
                    break
    except TimeoutError:
        raise Unreadable("timeout", what) from None
    except OSError as error:
        raise Unreadable(reason_of(error), what) from error
    raise Unreadable("huge", what)
