"""Queueing disciplines of the simulated node's interfaces, as the kernel reports them over netlink."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

SEQUENCE = 1
ROOT = 0xFFFFFFFF


class Fake(NamedTuple):
    index: int  # of the interface
    kind: str
    backlog: int = 0
    overlimits: int = 0
    handle: int = 0
    parent: int = ROOT


def attribute(kind: int, body: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(body), kind) + body + b"\0" * (-len(body) % 4)


def message(kind: int, body: bytes, flags: int = 2, sequence: int = SEQUENCE) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 4711) + body


def new(fake: Fake) -> bytes:
    """RTM_NEWQDISC with the attributes of Linux 6.8: the kind, the old counters, and the current ones."""
    queue = struct.pack("=IIIII", 3, fake.backlog, 7, 0, fake.overlimits)
    stats = attribute(1, struct.pack("=QI4x", 1 << 33, 1 << 20)) + attribute(3, queue)
    body = struct.pack("=BxxxiIII", 0, fake.index, fake.handle, fake.parent, 2)
    body += attribute(1, fake.kind.encode() + b"\0") + attribute(7, stats) + attribute(3, b"\0" * 36)
    return message(36, body)


DONE = message(3, struct.pack("=i", 0))


def error(errno: int) -> bytes:
    return message(2, struct.pack("=i", -errno) + b"\0" * 16)


FAKES: tuple[Fake, ...] = (
    Fake(1, "noqueue"),
    Fake(2, "fq_codel", 1514, 3, 0x80010000),
    # A queue for each CPU. The values of mq are their sums.
    Fake(3, "mq", 9000, 5000),
    Fake(3, "fq_codel", 4500, 2000, 0, 0x00000001),
    Fake(3, "fq_codel", 4500, 3000, 0, 0x00000002),
    Fake(4, "tbf", 250_000, 4_294_967_290, 0x00010000),
)
"""The interfaces are those of `nic`, by their place in its FAKES."""
NAMES = {1: "lo", 2: "eth0", 3: "eth2", 4: "eth3"}


def script(fakes: Iterable[Fake] = FAKES, *more: bytes) -> list[str]:
    """Two datagrams for kernel.write. The second one ends the answer."""
    datagram = b"".join(map(new, fakes))
    return [
        *(f"index {name} {index}" for index, name in NAMES.items()),
        f"netlink {datagram.hex()}",
        *(f"netlink {one.hex()}" for one in (more or (DONE,))),
    ]
