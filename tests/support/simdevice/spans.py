"""Spans of a schedule, and their sums. Needs neither the device nor torch. Times are nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Entry(NamedTuple):
    """A span of a stream. Spans of one stream follow each other without overlap; between them it is idle.

    Kinds: ``busy`` (busy() and occupy()), ``kernel`` and ``copy`` (only if they have been given a time), ``wait`` (for
    an event of another stream, which the tag names), ``rendezvous`` (a collective that waits for other ranks) and
    ``collective`` (its transfer). ``enqueued`` is when the host issued it."""

    device: int
    stream: int
    kind: str
    tag: str
    start: int
    end: int
    enqueued: int

    @property
    def ns(self) -> int:
        return self.end - self.start


def total(entries: Iterable[Entry], *kinds: str) -> int:
    """Nanoseconds of these kinds."""
    return sum(each.ns for each in entries if each.kind in kinds)


def within(entries: Iterable[Entry], start: int, end: int) -> list[Entry]:
    """The entries, limited to the time between start and end."""
    cut = (each._replace(start=max(each.start, start), end=min(each.end, end)) for each in entries)
    return [each for each in cut if each.start < each.end]


def gaps(entries: Iterable[Entry], start: int, end: int) -> list[tuple[int, int]]:
    """The times between start and end at which the stream with these entries was idle."""
    found, at = [], start
    for each in sorted(within(entries, start, end), key=lambda each: each.start):
        if each.start > at:
            found.append((at, each.start))
        at = max(at, each.end)
    return [*found, (at, end)] if at < end else found


def overlap(first: Iterable[Entry], second: Iterable[Entry]) -> int:
    """Nanoseconds in which both streams did the given kinds."""
    others = list(second)
    return sum(total(within(others, each.start, each.end), *{other.kind for other in others}) for each in first)
