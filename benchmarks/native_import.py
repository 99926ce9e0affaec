"""Fills VictoriaMetrics with a fleet's series, without sending a day of them sample by sample.

Many series have the same curve and differ only in their labels. A second server, which serves as an encoder, gets each
curve once as JSON and returns it as blocks of VictoriaMetrics's native format. These blocks are then sent with the
labels of all series that have the curve.

Formats: docs.victoriametrics.com, "How to export/import data in native format"; the name of a series as in
lib/storage/metric_name.go of VictoriaMetrics (MarshalNoAccountIDProjectID).
"""

from __future__ import annotations

import json
import math
import struct
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from servers import VictoriaMetrics
from tsdb_block import Stretch

SEPARATOR = b"\x01"
COURSE = "course"
REQUEST_BYTES = 32 << 20
RANGE_BYTES = 16
"""The size of the time range at the start of a stream. The streams to send start with the range of the export."""


def series_name(labels: Mapping[str, str]) -> bytes:
    """The encoded name of a series: the metric, then sorted names and values of labels, each followed by a separator.

    The separator must not occur in them.
    """
    metric = labels["__name__"]
    pairs = sorted((key, value) for key, value in labels.items() if value and key != "__name__")
    words = [metric, *(word for pair in pairs for word in pair)]
    return b"".join(word.encode() + SEPARATOR for word in words)


class Import:
    """Curves, and the series that have them. `send` writes all of them."""

    def __init__(self):
        self.lines: list[bytes] = []
        self.lengths: list[int] = []
        self.names: list[list[bytes]] = []
        self.begin = math.inf

    def curve(self, stretches: Sequence[Stretch]) -> int:
        """Stores a curve. Returns its number, with which series are added."""
        number = len(self.lines)
        times = [stretch.start + at * stretch.step for stretch in stretches for at in range(len(stretch.values))]
        values = [value for stretch in stretches for value in stretch.values.tolist()]
        course = {"metric": {"__name__": COURSE, "number": str(number)}, "values": values, "timestamps": times}
        self.lines.append(json.dumps(course).encode())
        self.lengths.append(len(times))
        self.begin = min(self.begin, times[0] / 1000)
        self.names.append([])
        return number

    def add(self, labels: Mapping[str, str], curve: int) -> None:
        self.names[curve].append(series_name(labels))

    def samples(self) -> int:
        return sum(length * len(names) for length, names in zip(self.lengths, self.names, strict=True))

    def send(self, server: VictoriaMetrics, scratch: Path, binary: str) -> None:
        """Sends all series. Raises OSError if a server refuses, and ValueError if curves came back changed."""
        scratch.mkdir()
        with VictoriaMetrics(scratch, binary) as encoder:
            for body in _requests(iter(self.lines), b"", b"\n"):
                encoder.post("/api/v1/import", body)
            encoder.get("/internal/force_flush")
            start, blocks = self._encoded(encoder)
        records = (
            _sized(name) + block
            for names, course in zip(self.names, blocks, strict=True)
            for name in names
            for block in course
        )
        for body in _requests(records, start, b""):
            server.post("/api/v1/import/native", body)
        server.get("/internal/force_flush")

    def _encoded(self, encoder: VictoriaMetrics) -> tuple[bytes, list[list[bytes]]]:
        """The beginning of the exported stream, and the blocks of each curve with their sizes."""
        query = urllib.parse.urlencode({"match[]": COURSE, "start": self.begin - 60})
        stream = encoder.get(f"/api/v1/export/native?{query}", timeout=600)
        blocks: list[list[bytes]] = [[] for _ in self.lines]
        at = RANGE_BYTES
        while at < len(stream):
            name, at = _taken(stream, at)
            block, at = _taken(stream, at)
            blocks[int(name.split(SEPARATOR)[2])].append(_sized(block))
        if not all(blocks):
            raise ValueError(f"{sum(not course for course in blocks)} of {len(blocks)} courses did not come back")
        return stream[:RANGE_BYTES], blocks


def _sized(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def _taken(stream: bytes, at: int) -> tuple[bytes, int]:
    begin = at + 4
    end = begin + struct.unpack_from(">I", stream, at)[0]
    return stream[begin:end], end


def _requests(pieces: Iterator[bytes], head: bytes, tail: bytes) -> Iterator[bytes]:
    """Joins pieces into request bodies of about REQUEST_BYTES. ``head`` starts a body, ``tail`` ends each piece."""
    body = bytearray(head)
    for piece in pieces:
        body += piece + tail
        if len(body) >= REQUEST_BYTES:
            yield bytes(body)
            body = bytearray(head)
    if len(body) > len(head):
        yield bytes(body)
