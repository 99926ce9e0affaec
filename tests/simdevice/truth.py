"""What the device did: its schedule, and what follows from it. Times are nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

_C: Any = sys.modules["_simdevice"]


class Entry(NamedTuple):
    """A span of a stream. Spans of one stream follow each other without overlap; between them it is idle.

    Kinds: ``busy`` (busy() and occupy()), ``kernel`` and ``copy`` (only if they have been given a time), ``wait`` (for an
    event of another stream, which the tag names), ``rendezvous`` (a collective that waits for other ranks) and
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


def schedule(stream: torch.Stream | int | None = None, device: int = 0) -> list[Entry]:
    """Everything that took time so far, by start. Synchronize first to have all of it."""
    wanted = stream.stream_id if isinstance(stream, torch.Stream) else stream
    entries = [Entry(*each) for each in _C.schedule()]
    return sorted(
        (each for each in entries if each.device == device and wanted in (None, each.stream)),
        key=lambda each: (each.start, each.end),
    )


def clear_schedule() -> None:
    _C.clear_schedule()


def total(entries: Iterable[Entry], *kinds: str) -> int:
    """Nanoseconds of these kinds."""
    return sum(each.ns for each in entries if each.kind in kinds)


def within(entries: Iterable[Entry], start: int, end: int) -> list[Entry]:
    """The entries, cut to what of them lies between start and end."""
    cut = (each._replace(start=max(each.start, start), end=min(each.end, end)) for each in entries)
    return [each for each in cut if each.start < each.end]


def gaps(entries: Iterable[Entry], start: int, end: int) -> list[tuple[int, int]]:
    """When one stream, whose entries these are, had nothing to do between start and end."""
    found, at = [], start
    for each in sorted(within(entries, start, end), key=lambda each: each.start):
        if each.start > at:
            found.append((at, each.start))
        at = max(at, each.end)
    return [*found, (at, end)] if at < end else found


def overlap(first: Iterable[Entry], second: Iterable[Entry]) -> int:
    """Nanoseconds in which both streams did what is given."""
    others = list(second)
    return sum(total(within(others, each.start, each.end), *{other.kind for other in others}) for each in first)


# -- who called what

_labels = ["user"]


@contextmanager
def blame(label: str) -> Iterator[None]:
    """Counts this thread's calls under ``label`` meanwhile. Calls of all others are counted under ``user``."""
    if label not in _labels:
        _labels.append(label)
    before = _C.label()
    _C.set_label(_labels.index(label))
    try:
        yield
    finally:
        _C.set_label(before)


def counters(label: str = "user") -> dict[str, int]:
    """Calls so far, by name: those that make the host wait (``synchronize_*``, ``copy_blocking``,
    ``operator_blocking``, ``full_queue``), those of events, and faults in a capture. Never called: 0."""
    return _C.counters(_labels.index(label)) if label in _labels else dict.fromkeys(_C.counters(0), 0)


def reset_counters() -> None:
    _C.reset_counts()


@contextmanager
def callers(part_of_path: str) -> Iterator[list[tuple[str, str]]]:
    """Lists (call, file:line) of every counted call that is made by a file whose path has this part: with
    ``callers("/torch_hooks/")``, what whyidle's hooks called, from whichever thread, and not what they stand around."""
    seen: list[tuple[str, str]] = []

    def observe(call: str) -> None:
        frame = sys._getframe().f_back
        if frame is not None and part_of_path in frame.f_code.co_filename:
            seen.append((call, f"{frame.f_code.co_filename}:{frame.f_lineno}"))

    _C.set_observer(observe)
    try:
        yield seen
    finally:
        _C.set_observer(None)


def contexts() -> list[bool]:
    """Which device indices have a context: something was allocated, queued or synchronized there."""
    return [_C.touched(index) for index in range(_C.DEVICES)]


def forget_contexts() -> None:
    _C.forget_contexts()


# -- capture


class Graph:
    """What was captured; ``replay`` queues it again on the streams it was captured from."""

    def __init__(self) -> None:
        self._captured: Any = None

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Meanwhile nothing runs, queries and synchronizations raise, and recording an event counts as a fault."""
        _C.begin_capture()
        try:
            yield
        finally:
            self._captured = _C.end_capture()

    def replay(self) -> None:
        self._captured.replay()
