"""Attributes of an RDMA port that are not plain numbers. Format: drivers/infiniband/core/sysfs.c."""

from __future__ import annotations

import re
from typing import NamedTuple

from .unreadable import Unreadable

DOWN = 1
ACTIVE = 4
"""States of a port's link layer. 2 is INIT (no subnet manager has configured the port yet), 3 is ARMED."""

_STATE = re.compile(rb"(\d{1,3}):\s*[\x20-\x7e]*\s*")
_RATE = re.compile(rb"(\d{1,6})(?:\.(\d{1,3}))?\s*Gb/sec\s*(?:\(\s*(\d{1,2}X)?\s*([A-Z][A-Z0-9]{0,7})?\s*\))?\s*")
_BYTES_OF_MEGABIT = 125_000


class Rate(NamedTuple):
    """A rate such as ``400 Gb/sec (4X NDR)``. Older kernels leave out the generation, or the whole parenthesis."""

    bytes_per_second: int
    width: str  # lanes: 1X, 2X, 4X, 8X, 12X; empty if absent
    generation: str  # SDR, ..., NDR, XDR; empty if absent


def state(data: bytes) -> int:
    """The number of a state such as ``4: ACTIVE`` or ``5: LinkUp``. Raises Unreadable."""
    found = _STATE.fullmatch(data)
    if not found:
        raise Unreadable(_no_text(data))
    return int(found[1])


def rate(data: bytes) -> Rate:
    """The rate of a link, all lanes together, in one direction. Raises Unreadable."""
    found = _RATE.fullmatch(data)
    if not found:
        raise Unreadable(_no_text(data))
    whole, fraction, width, generation = found.groups(b"")
    megabits = int(whole) * 1000 + int(fraction.ljust(3, b"0") or 0)
    return Rate(megabits * _BYTES_OF_MEGABIT, width.decode(), generation.decode())


def _no_text(data: bytes) -> str:
    data = data.strip()
    if not data:
        return "empty"
    return "unsupported" if data[:3] == b"N/A" else "garbage"
