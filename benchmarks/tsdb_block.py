"""Writes a block of Prometheus's database, so that a day of a fleet does not have to be sent to it.

Each curve is encoded once in the file of chunks. An entry of the index has labels and references to chunks, so any
number of series can refer to the same curve. For 2.4 million series, little more than the index is written. So the file
of chunks is far smaller than that of a real fleet, and more of it fits into the caches of the kernel and the processor.
Queries find, decode and compute the same amount.

Formats: prometheus/tsdb/docs/format/{index,chunks,tombstones}.md, and tsdb/chunkenc/xor.go for the content of a chunk.
"""

from __future__ import annotations

import json
import os
import struct
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from remote_write import varint as uvarint

CHUNK_SAMPLES = 120  # as in Prometheus's head block
XOR = b"\x01"
SERIES_ALIGNMENT = 16
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ROWS = 50_000  # series that are encoded at a time
Ids = NDArray[np.uint32]


@dataclass(frozen=True)
class Stretch:
    """Samples at regular times. ``start`` (since 1970) and ``step`` are in milliseconds."""

    start: int
    step: int
    values: NDArray[np.float64]

    def chunks(self) -> Iterator[Stretch]:
        for at in range(0, len(self.values), CHUNK_SAMPLES):
            yield Stretch(self.start + at * self.step, self.step, self.values[at : at + CHUNK_SAMPLES])

    @property
    def end(self) -> int:
        """The time of the last sample, in milliseconds."""
        return self.start + (len(self.values) - 1) * self.step


@dataclass(frozen=True)
class Curve:
    """The encoded references to the chunks of a series, for its index entry."""

    entry: bytes
    chunks: int
    samples: int


def varint(number: int) -> bytes:
    return uvarint(number << 1 if number >= 0 else (-number << 1) - 1)


def checksum(body: bytes) -> bytes:
    return struct.pack(">I", google_crc32c.value(body))


def section(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body + checksum(body)


def text(value: str) -> bytes:
    encoded = value.encode()
    return uvarint(len(encoded)) + encoded


def xor_chunk(stretch: Stretch) -> bytes:
    """Encodes the samples of one chunk. Times are regular, so each of them takes one bit."""
    values: list[int] = stretch.values.astype(">f8").view(">u8").tolist()
    head = struct.pack(">H", len(values)) + varint(stretch.start) + struct.pack(">Q", values[0])
    if len(values) > 1:
        head += uvarint(stretch.step)
    found, leading, trailing = 1, 65, 0  # starts with a 1, so that leading zeros are not lost
    for at in range(1, len(values)):
        found <<= at > 1  # 0: the step does not change. The first step is in the head
        different = values[at] ^ values[at - 1]
        if not different:
            found <<= 1
            continue
        zeros = min(31, 64 - different.bit_length())
        after = (different & -different).bit_length() - 1
        if zeros >= leading and after >= trailing:
            found = (found << 2 | 0b10) << 64 - leading - trailing | different >> trailing
            continue
        leading, trailing = zeros, after
        width = 64 - leading - trailing
        found = ((found << 2 | 0b11) << 5 | leading) << 6 | width & 63
        found = found << width | different >> trailing
    bits = found.bit_length() - 1
    padded = (found ^ 1 << bits) << -bits % 8
    return head + padded.to_bytes(-(-bits // 8), "big")


class Block:
    """A block that is being written under ``data``, Prometheus's folder."""

    def __init__(self, data: Path):
        self.ulid = ulid()
        self.folder = data / self.ulid
        (self.folder / "chunks").mkdir(parents=True)
        self.segment = (self.folder / "chunks" / "000001").open("wb")
        self.segment.write(b"\x85\xbd\x40\xdd\x01\0\0\0")
        self.curves: list[Curve] = []
        self.curve_of = array("I")
        self.pairs: dict[tuple[str, str], int] = {}
        self.pair_ids = array("I")
        self.widths = array("I")

    def curve(self, stretches: Sequence[Stretch]) -> int:
        """Encodes a curve. Returns its number, with which series are added."""
        found, count, before, place = [], 0, 0, 0
        for chunk in (chunk for stretch in stretches for chunk in stretch.chunks()):
            body, here = xor_chunk(chunk), self.segment.tell()
            self.segment.write(uvarint(len(body)) + XOR + body + checksum(XOR + body))
            since = uvarint(chunk.start - before) if count else varint(chunk.start)
            found += [since, uvarint(chunk.end - chunk.start), varint(here - place) if count else uvarint(here)]
            before, place, count = chunk.end, here, count + 1
        samples = sum(len(stretch.values) for stretch in stretches)
        self.curves.append(Curve(uvarint(count) + b"".join(found), count, samples))
        return len(self.curves) - 1

    def add(self, labels: Mapping[str, str], curve: int) -> None:
        pairs = [pair for pair in sorted(labels.items()) if pair[1]]
        self.pair_ids.extend(self.pairs.setdefault(pair, len(self.pairs)) for pair in pairs)
        self.widths.append(len(pairs))
        self.curve_of.append(curve)

    def close(self, start: int, end: int) -> None:
        """Writes the index and all other files. Times are in milliseconds. The last sample is before ``end``."""
        self.segment.close()
        with (self.folder / "index").open("wb") as file:
            Index(self, file).write()
        stones = b"\x01\x30\xba\x30\x01"
        (self.folder / "tombstones").write_bytes(stones + checksum(b""))
        used = np.bincount(np.asarray(self.curve_of), minlength=len(self.curves)).tolist()
        stats = {
            "numSamples": sum(curve.samples * times for curve, times in zip(self.curves, used, strict=True)),
            "numSeries": len(self.widths),
            "numChunks": sum(curve.chunks * times for curve, times in zip(self.curves, used, strict=True)),
        }
        meta = {"ulid": self.ulid, "minTime": start, "maxTime": end, "stats": stats, "version": 1}
        meta["compaction"] = {"level": 1, "sources": [self.ulid]}
        (self.folder / "meta.json").write_text(json.dumps(meta))

    def samples(self) -> int:
        return sum(self.curves[curve].samples for curve in self.curve_of)


class Index:
    """The file ``index`` of a block, version 2."""

    def __init__(self, block: Block, file: BinaryIO):
        self.block, self.file = block, file
        self.pairs = sorted(block.pairs)
        names = {name for name, _ in self.pairs}
        self.symbols = sorted(names | {value for _, value in self.pairs})

    def write(self) -> None:
        self.file.write(b"\xba\xaa\xd7\x00\x02")
        contents = [self.file.tell()]
        self.file.write(section(struct.pack(">I", len(self.symbols)) + b"".join(map(text, self.symbols))))
        rows = self._rows()
        order = np.lexsort(rows.T[::-1])
        rows = rows[order]
        contents.append(self._align(SERIES_ALIGNMENT))
        series = self._series(rows, np.asarray(self.block.curve_of)[order])
        contents += [0, 0, self._align(4)]  # no index of labels: Prometheus has not read it since 2.15
        table = self._postings(rows, series)
        contents.append(self.file.tell())
        self.file.write(section(table))
        contents_body = struct.pack(">6Q", *contents)
        self.file.write(contents_body + checksum(contents_body))

    def _align(self, size: int) -> int:
        self.file.write(bytes(-self.file.tell() % size))
        return self.file.tell()

    def _rows(self) -> Ids:
        """A row per series: the sorted ranks (from 1 on) of its label pairs, padded with 0."""
        rank = np.empty(len(self.pairs), dtype=np.uint32)
        rank[[self.block.pairs[pair] for pair in self.pairs]] = np.arange(1, len(self.pairs) + 1, dtype=np.uint32)
        widths = np.asarray(self.block.widths)
        rows = np.zeros((len(widths), int(widths.max())), dtype=np.uint32)
        rows[np.arange(rows.shape[1]) < widths[:, None]] = rank[np.asarray(self.block.pair_ids)]
        return rows

    def _series(self, rows: Ids, curves: Ids) -> Ids:
        """Writes the entries of the series. Returns their references."""
        number = {symbol: uvarint(at) for at, symbol in enumerate(self.symbols)}
        pieces = [b"", *(number[name] + number[value] for name, value in self.pairs)]
        widths = (rows > 0).sum(axis=1)
        references = np.empty(len(rows), dtype=np.uint32)
        place = self.file.tell()
        for at in range(0, len(rows), ROWS):
            entries, places = [], []
            part = slice(at, at + ROWS)
            found = zip(rows[part].tolist(), widths[part].tolist(), curves[part].tolist(), strict=True)
            for row, width, curve in found:
                labels = b"".join(map(pieces.__getitem__, row))
                body = uvarint(width) + labels + self.block.curves[curve].entry
                entry = uvarint(len(body)) + body + checksum(body)
                entry += bytes(-len(entry) % SERIES_ALIGNMENT)
                entries.append(entry)
                places.append(place // SERIES_ALIGNMENT)
                place += len(entry)
            self.file.write(b"".join(entries))
            references[part] = places
        return references

    def _postings(self, rows: Ids, series: Ids) -> bytes:
        """Writes the postings (which series have a label pair) of each pair. Returns the table of their positions."""
        used = rows > 0
        pairs = rows[used]
        owners = np.repeat(series, used.sum(axis=1))[np.argsort(pairs, kind="stable")]
        ends = np.cumsum(np.bincount(pairs, minlength=len(self.pairs) + 1))
        table = [struct.pack(">I", len(self.pairs) + 1), self._posting("", "", series)]
        table += [
            self._posting(*pair, owners[ends[at] : ends[at + 1]])  # the rank of a pair is its position + 1
            for at, pair in enumerate(self.pairs)
        ]
        return b"".join(table)

    def _posting(self, name: str, value: str, series: Ids) -> bytes:
        place = self.file.tell()
        self.file.write(section(struct.pack(">I", len(series)) + series.astype(">u4").tobytes()))
        return b"\x02" + text(name) + text(value) + uvarint(place)


def ulid() -> str:
    """A new name for a block: 48 bits of milliseconds and 80 random bits (github.com/ulid/spec)."""
    number = int(time.time() * 1000) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(CROCKFORD[number >> 5 * place & 31] for place in reversed(range(26)))
