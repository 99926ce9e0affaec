"""Encodes requests of Prometheus's remote write for many series at once.

A batch is encoded once. For each request, only the values and times in it are overwritten.
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
    """A protobuf field of wire type 2: bytes, text or a message."""
    return bytes([number << 3 | 2]) + varint(len(body)) + body


def series(labels: Labels, samples: int = 1) -> bytes:
    """A TimeSeries that ends with samples, all bytes of which are zero."""
    named = b"".join(
        field(1, field(1, name.encode()) + field(2, text.encode())) for name, text in sorted(labels.items()) if text
    )
    sample = b"\x09" + bytes(8) + b"\x10" + bytes(TIME_BYTES)
    return field(1, named + field(2, sample) * samples)


def block(body: bytes) -> bytes:
    """Snappy's block format: one literal."""
    return varint(len(body)) + b"\xfc" + struct.pack("<I", len(body) - 1) + body


class Batch:
    """Some series, each of which grows at its own rate. A request has ``samples`` samples of each."""

    def __init__(self, labels: Sequence[Labels], base: Sequence[float], rate: Sequence[float], samples: int = 1):
        self.labels, self.samples = labels, samples
        pieces = [series(one, samples) for one in labels]
        ends = np.cumsum([len(piece) for piece in pieces]).astype(np.int32)
        self.body = np.frombuffer(b"".join(pieces), dtype=np.uint8).copy()
        before = np.arange(samples - 1, -1, -1, dtype=np.int32) * (SAMPLE_BYTES + 2)  # 2: the field and its length
        each = (ends[:, None] - before)[:, :, None]
        self.values_at = each - SAMPLE_BYTES + 1 + np.arange(8, dtype=np.int32)
        self.times_at = each - TIME_BYTES + np.arange(TIME_BYTES, dtype=np.int32)
        self.base = np.asarray(base, dtype="<f8")
        self.rate = np.asarray(rate, dtype="<f8")

    def __len__(self) -> int:
        return len(self.base)

    def of(self, samples: int) -> Batch:
        """A batch of the same series, with another number of samples per request."""
        return Batch(self.labels, self.base.tolist(), self.rate.tolist(), samples)

    def at(self, moment: float, start: float, step: float = 0.0) -> bytes:
        """The request with samples that are ``step`` seconds apart. The last is at ``moment``.

        Values grow from ``start`` on. ``moment`` and ``start`` are Unix seconds.
        """
        times = moment - step * np.arange(self.samples - 1, -1, -1)
        values = np.ascontiguousarray(self.base[:, None] + self.rate[:, None] * (times - start))
        self.body[self.values_at] = values.view(np.uint8).reshape(len(self), self.samples, 8)
        stamps = b"".join(varint(int(time * 1000)) for time in times)
        self.body[self.times_at] = np.frombuffer(stamps, dtype=np.uint8).reshape(self.samples, TIME_BYTES)
        return block(self.body.tobytes())
