"""The answers of the ioctl SIOCETHTOOL. Format: include/uapi/linux/ethtool.h."""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..files import Unreadable

STRING_BYTES = 32
_DRVINFO = struct.Struct("=I32s32s32s32s32s12s5I")
DRVINFO_BYTES = _DRVINFO.size


class Driver(NamedTuple):
    """An interface's driver, and the address of its device on the bus: a PCI address, or the device's name in sysfs."""

    name: str
    bus: str


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("ascii", "replace").strip()


def driver(data: bytes) -> Driver:
    """Parses a ``struct ethtool_drvinfo``. Raises Unreadable."""
    try:
        _, name, _, _, bus, *_ = _DRVINFO.unpack_from(data)
    except struct.error:
        raise Unreadable("garbage") from None
    return Driver(_text(name), _text(bus))


def names(data: bytes) -> tuple[str, ...]:
    """The strings of a string set, each of which has 32 bytes. Raises Unreadable."""
    if len(data) % STRING_BYTES:
        raise Unreadable("garbage")
    return tuple(_text(data[start : start + STRING_BYTES]) for start in range(0, len(data), STRING_BYTES))
