"""`struct tcp_info`, the answer to getsockopt(TCP_INFO). Format: linux/tcp.h. Older kernels give less of it."""

from __future__ import annotations

import struct
from typing import NamedTuple

BYTES = 256
"""Enough for the whole structure."""
ESTABLISHED = 1
_TRIP, _RESENT, _ACKED, _LEAST_TRIP, _SEGMENTS, _BUSY = 68, 100, 120, 148, 156, 168
_U32, _2U64, _3U64 = struct.Struct("=I"), struct.Struct("=QQ"), struct.Struct("=QQQ")


class TcpInfo(NamedTuple):
    """What a connection has moved since it was made. 0 stands for what this kernel does not tell."""

    state: int
    sent: int  # bytes that the other end has acknowledged
    received: int  # bytes
    segments: int  # with data, including those sent again
    resent: int
    busy_us: int  # something was sent and not yet acknowledged
    window_us: int  # part of it: the receiver's window was full
    buffer_us: int  # part of it: the send buffer was full
    trip_us: int  # smoothed round-trip time
    least_trip_us: int


def parse(data: bytes) -> TcpInfo | None:
    """None if the kernel (before 4.1) does not tell the bytes."""
    size = len(data)
    if size < _ACKED + 16:
        return None
    sent, received = _2U64.unpack_from(data, _ACKED)
    busy, window, buffer = _3U64.unpack_from(data, _BUSY) if size >= _BUSY + 24 else (0, 0, 0)
    least = _U32.unpack_from(data, _LEAST_TRIP)[0] if size >= _LEAST_TRIP + 4 else 0
    return TcpInfo(
        data[0],
        sent,
        received,
        _U32.unpack_from(data, _SEGMENTS)[0] if size >= _SEGMENTS + 4 else 0,
        _U32.unpack_from(data, _RESENT)[0],
        busy,
        window,
        buffer,
        _U32.unpack_from(data, _TRIP)[0],
        0 if least == 0xFFFF_FFFF else least,  # not measured yet
    )
