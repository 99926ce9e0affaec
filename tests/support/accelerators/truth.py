"""What a rank's device did, according to its own schedule. Pure functions: records of a job in, seconds out.

While the thread of a stream gets no CPU for what it has to do, the stream counts as idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simdevice.spans import Entry

WAITS = ("wait", "rendezvous", "collective")
Span = tuple[int, int]


@dataclass(frozen=True)
class Truth:
    """Seconds of one rank, from its first step to its last. Except ``idle`` and ``unscheduled``, they add up to
    ``wall``."""

    wall: float
    compute: float
    """Busy, and idle while the host was in none of the other phases."""
    data: float
    save: float
    transfer: float
    """Waiting for a transfer that every rank had entered."""
    late: float
    """Waiting for a late rank, and idle while the host was in a barrier."""
    idle: float
    """Part of ``compute``: the home stream had nothing to do."""
    unscheduled: float
    """Part of the others: the home stream had something to do, and its thread got no CPU. No real device has this."""

    @property
    def waited(self) -> float:
        return self.transfer + self.late


def truth_of(told: dict[str, Any], start: int, end: int) -> Truth:
    """The seconds between two moments, ns of CLOCK_MONOTONIC."""
    everything = [Entry(*each) for each in told["schedule"]]
    entries = [each for each in everything if each.kind != "late"]
    home = [each for each in entries if each.stream == told["home"]]
    elsewhere = [each for each in entries if each.stream != told["home"]]
    idle = _gaps([(each.start, each.end) for each in home], start, end)
    data = _overlap(idle, told["spans"]["data"])
    save = _overlap(idle, told["spans"]["save"])
    # A barrier keeps the host, so the stream's waits in it are over before the host can enqueue more.
    barred = _overlap(idle, told["spans"]["barrier"])
    waits = _cut([(each.start, each.end) for each in home if each.kind in WAITS], start, end)
    waited = sum(b - a for a, b in waits)
    # The home stream waits for its own collective, or for one on another stream, which meets others or moves data.
    late = _union([(each.start, each.end) for each in (*home, *elsewhere) if each.kind == "rendezvous"])
    behind = _overlap(waits, late)
    wall = end - start
    compute = wall - data - save - waited - barred
    lagged = [(each.start, each.end) for each in everything if each.kind == "late" and each.stream == told["home"]]
    unscheduled = sum(b - a for a, b in _cut(lagged, start, end))
    own_idle = sum(b - a for a, b in idle) - data - save - barred
    spent = wall, compute, data, save, waited - behind, behind + barred, own_idle, unscheduled
    return Truth(*(ns / 1e9 for ns in spent))


def _cut(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    return [(max(a, start), min(b, end)) for a, b in spans if max(a, start) < min(b, end)]


def _union(spans: Sequence[Span]) -> list[Span]:
    found: list[Span] = []
    for a, b in sorted(spans):
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(b, found[-1][1]))
        else:
            found.append((a, b))
    return found


def _gaps(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    found, at = [], start
    for a, b in _union(_cut(spans, start, end)):
        if a > at:
            found.append((at, a))
        at = max(at, b)
    return [*found, (at, end)] if at < end else found


def _overlap(first: Sequence[Span], second: Sequence[Span]) -> int:
    return sum(max(0, min(b, d) - max(a, c)) for a, b in first for c, d in second)
