"""``struct timex`` of adjtimex(2) on 64-bit Linux. Format: include/uapi/linux/timex.h."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..files import Unreadable

_TIMEX = struct.Struct("@I4xqqqqi4xqqqqqqqqi4xqqqqqi44x")
"""The same on x86-64 and aarch64, where longs have 8 bytes and 8-byte alignment."""
BYTES = _TIMEX.size

STA_UNSYNC = 0x0040
STA_NANO = 0x2000
TIME_ERROR = 5
_FREQ_UNIT = 65536 * 1_000_000  # freq is in ppm, with 16 fractional bits


@dataclass(frozen=True, slots=True)
class Timex:
    """The kernel's clock discipline."""

    synchronised: bool
    offset_seconds: float
    frequency_ratio: float
    maximum_error_us: int
    estimated_error_us: int
    tai_offset_seconds: int


def timex(state: int, data: bytes) -> Timex:
    """Parses the result and the ``struct timex`` of adjtimex. Raises Unreadable."""
    if len(data) != BYTES:
        raise Unreadable("garbage")
    _, offset, freq, maximum, estimated, status, *_, tai = _TIMEX.unpack(data)
    return Timex(
        synchronised=state != TIME_ERROR and not status & STA_UNSYNC,
        offset_seconds=offset / (1_000_000_000 if status & STA_NANO else 1_000_000),
        frequency_ratio=1 + freq / _FREQ_UNIT,
        maximum_error_us=maximum,
        estimated_error_us=estimated,
        tai_offset_seconds=tai,
    )
