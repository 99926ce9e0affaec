"""Writes a day of a fleet in Prometheus's own format, and the live data after it."""

from __future__ import annotations

import functools
import re
import struct
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from native_import import Import
from remote_write import Batch
from servers import SCRAPE_SECONDS, Prometheus
from synthetic import BATCH, Fleet, Recorded
from tsdb_block import Block, Stretch

from whyidle.alerts.output import groups

DAY_SECONDS = 86_400 + 600  # with the time that the first point of a day looks back on
HOUR_SECONDS = 66 * 60
"""A little more than the hour that rules look back on. The first point of half an hour needs as much."""
FINE_SECONDS = 75 * 60
"""The end of the day, in which raw series have a sample per scrape, since rules look back an hour."""
SLAB_SECONDS = 240
"""Seconds of each series in one request, when minutes are sent at once. It is a multiple of the shorter intervals. A
series with a longer one has a sample in some of the requests."""
WOBBLE = np.random.default_rng(0).normal(1.0, 0.02, 31 * 86_400 // 60 + 1)
SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds(duration: str) -> int:
    """The seconds of a Prometheus duration, such as `1m`."""
    return sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"(\d+)([smh])", duration))


def intervals() -> dict[str, int]:
    """Group of rules -> seconds between its evaluations."""
    return {group.name: seconds(group.interval) if group.interval else SCRAPE_SECONDS for group in groups()}


def recorded_steps() -> dict[str, int]:
    """Recorded series -> seconds between its samples."""
    every = intervals()
    return {rule.name: every[group.name] for group in groups() for rule in group.rules}


class Encoder(Protocol):
    """Stores curves, and returns a number for each."""

    def curve(self, stretches: Sequence[Stretch]) -> int: ...


class Curves:
    """The curves of series between two times. Each is encoded once."""

    def __init__(self, encoder: Encoder, begin: float, end: float, *, step: int, start: float):
        """``step`` is the number of seconds between samples before the last 75 minutes. Values grow from ``start`` on.

        ``begin``, ``end`` and ``start`` are Unix seconds.
        """
        self.encoder, self.begin, self.end, self.step, self.start = encoder, begin, end, step, start
        self.growing = functools.cache(self._growing)
        self.steady = functools.cache(self._steady)

    def _times(self, begin: float, end: float, step: int) -> np.ndarray:
        return np.arange(-(-begin // step) * step, end, step)

    def _growing(self, base: float, rate: float) -> int:
        """A curve that grows like a counter. With a rate of 0 it is a constant gauge."""
        fine = max(self.begin, self.end - FINE_SECONDS)
        pieces = [
            (self._times(self.begin, fine, self.step), self.step),
            (self._times(fine, self.end, SCRAPE_SECONDS), SCRAPE_SECONDS),
        ]
        return self.encoder.curve(
            [
                Stretch(int(times[0]) * 1000, step * 1000, base + rate * (times - self.start))
                for times, step in pieces
                if len(times)
            ]
        )

    def _steady(self, value: float, step: int) -> int:
        """A curve that varies a little, like a recorded share. Whole numbers stay constant."""
        times = self._times(self.begin, self.end, step)
        values = np.full(len(times), value)
        if not value.is_integer():
            values *= np.roll(WOBBLE, zlib.crc32(struct.pack("<d", value)))[: len(times)]
        return self.encoder.curve([Stretch(int(times[0]) * 1000, step * 1000, values)])


def write_block(
    data: Path, fleet: Fleet, recorded: Recorded | None, start: float, end: float, day: int, step: int, past: int = 0
) -> int:
    """Writes ``day`` seconds of all series, up to ``end``. Returns the number of samples.

    Raw series grow from ``start`` on. ``past`` is the number of seconds of recorded series, if it is more than ``day``.
    """
    block = Block(data)
    curves = Curves(block, end - day, end, step=step, start=start)
    for labels, base, rate in fleet.series():
        block.add(labels, curves.growing(base, rate))
    if recorded:
        add_recorded(block, Curves(block, end - max(day, past), end, step=step, start=start), recorded)
    block.close(int(end - max(day, past) - 2 * step) * 1000, int(end) * 1000)
    (data / "wal").mkdir(exist_ok=True)  # promtool requires this folder
    return block.samples()


def add_recorded(into: Block | Import, curves: Curves, recorded: Recorded) -> None:
    steps = recorded_steps()
    for labels, value in recorded.series():
        into.add(labels, curves.steady(value, steps[labels["__name__"]]))


def native(fleet: Fleet, recorded: Recorded, start: float, end: float, step: int) -> Import:
    """The data for VictoriaMetrics: a day of recorded series and of one run, and an hour of all other series."""
    found = Import()
    day = Curves(found, end - DAY_SECONDS, end, step=step, start=start)
    hour = Curves(found, end - HOUR_SECONDS, end, step=step, start=start)
    for nodes, curves in ((range(fleet.per_run), day), (range(fleet.per_run, fleet.nodes), hour)):
        for labels, base, rate in fleet.series(nodes):
            found.add(labels, curves.growing(base, rate))
    add_recorded(found, day, recorded)
    return found


def push(server: Prometheus, batches: Iterable[Batch], moment: float, start: float) -> None:
    """Sends one sample of each series."""
    for batch in batches:
        server.write(batch.at(moment, start))


def push_past(server: Prometheus, fleet: list[Batch], recorded: Recorded, minutes: int, start: float) -> int:
    """Sends the last minutes of raw series and of the series that rules record from them. Returns how many samples.

    It sends all series up to one time before it sends later samples: Prometheus refuses samples that are an hour older
    than its newest sample. Exits if this machine is too slow to catch up with the present.
    """
    several = [(SCRAPE_SECONDS, batch.of(SLAB_SECONDS // SCRAPE_SECONDS)) for batch in fleet]
    several += [(step, batch.of(max(1, SLAB_SECONDS // step))) for step, batch in _recorded_batches(recorded)]
    moment, written = int(time.time()) // SLAB_SECONDS * SLAB_SECONDS - 60 * minutes, 0
    behind = time.time() - moment
    while moment + SLAB_SECONDS < time.time():
        moment += SLAB_SECONDS
        for step, batch in several:
            newest = moment // step * step
            if newest > moment - SLAB_SECONDS:
                server.write(batch.at(newest, start, step))
                written += len(batch) * batch.samples
        behind = _nearer(behind, time.time() - moment)
    while moment + SCRAPE_SECONDS < time.time():
        moment += SCRAPE_SECONDS
        push(server, fleet, moment, start)
        written += sum(map(len, fleet))
        behind = _nearer(behind, time.time() - moment)
    return written


def _nearer(nearest: float, now: float) -> float:
    """The fewest seconds behind the present so far. Exits if there are far more now."""
    if now > nearest + 2 * SCRAPE_SECONDS:
        raise SystemExit("This machine takes longer to send the samples than they cover. Use fewer --nodes.")
    return min(nearest, now)


def _recorded_batches(recorded: Recorded) -> Iterator[tuple[int, Batch]]:
    """Batches of recorded series, with the seconds between their samples."""
    steps, found = recorded_steps(), defaultdict[int, list[tuple[dict[str, str], float]]](list)
    for labels, value in recorded.series():
        found[steps[labels["__name__"]]].append((labels, value))
    for step, series in found.items():
        for at in range(0, len(series), BATCH):
            labels, values = zip(*series[at : at + BATCH], strict=True)
            yield step, Batch(labels, values, [0.0] * len(values))


def live(server: Prometheus, batches: list[Batch], start: float, until: Callable[[], bool]) -> int:
    """Sends a sample of all series every 15 s, or as often as the server can take it. Returns the number of rounds."""
    rounds = 0
    while not until():
        began = time.time()
        push(server, batches, began, start)
        rounds += 1
        time.sleep(max(0.0, SCRAPE_SECONDS - (time.time() - began)))
    return rounds
