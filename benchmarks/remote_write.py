"""Writes many series at once to whatever takes Prometheus's remote write: the format, and nothing else.

A batch is laid out once; what changes from one moment to the next, values and time, is patched in place.
Format: prometheus/prompb/{remote,types}.proto, version 0.1.0, in the block format of Snappy without any compression.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

TIME_BYTES = 6  # a varint of milliseconds since 1970 takes six bytes from 2004 to 2109
SAMPLE_BYTES = 1 + 8 + 1 + TIME_BYTES  # field 1, double; field 2, varint
HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
Labels = Mapping[str, str]


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def field(number: int, body: bytes) -> bytes:
    """A field of wire type 2: bytes, text or a message."""
    return bytes([number << 3 | 2]) + varint(len(body)) + body


def series(labels: Labels) -> bytes:
    """A TimeSeries with one sample that is all zeros; the sample stands last."""
    named = b"".join(
        field(1, field(1, name.encode()) + field(2, text.encode())) for name, text in sorted(labels.items()) if text
    )
    sample = b"\x09" + bytes(8) + b"\x10" + bytes(TIME_BYTES)
    return field(1, named + field(2, sample))


def block(body: bytes) -> bytes:
    """Snappy's block format: one literal."""
    return varint(len(body)) + b"\xfc" + struct.pack("<I", len(body) - 1) + body


class Batch:
    """Some series, each with a value that grows by a rate of its own."""

    def __init__(self, labels: Sequence[Labels], base: Sequence[float], rate: Sequence[float]):
        pieces = [series(one) for one in labels]
        ends = np.cumsum([len(piece) for piece in pieces])
        self.body = np.frombuffer(b"".join(pieces), dtype=np.uint8).copy()
        ends = ends.astype(np.int32)[:, None]
        self.values_at = ends - SAMPLE_BYTES + 1 + np.arange(8, dtype=np.int32)
        self.times_at = ends - TIME_BYTES + np.arange(TIME_BYTES, dtype=np.int32)
        self.base = np.asarray(base, dtype="<f8")
        self.rate = np.asarray(rate, dtype="<f8")

    def __len__(self) -> int:
        return len(self.base)

    def at(self, moment: float, start: float) -> bytes:
        """The request for one moment; values grow from ``start`` on. Both in Unix seconds."""
        values = self.base + self.rate * (moment - start)
        self.body[self.values_at] = values.view(np.uint8).reshape(-1, 8)
        self.body[self.times_at] = np.frombuffer(varint(int(moment * 1000)), dtype=np.uint8)
        return block(self.body.tobytes())
