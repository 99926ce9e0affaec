"""What the device did: its schedule, and which code called it. Times are nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .spans import Entry

_C: Any = sys.modules["_simdevice"]


def schedule(stream: torch.Stream | int | None = None, device: int = 0) -> list[Entry]:
    """Everything that took time so far, by start. Call synchronize first to get all of it."""
    wanted = stream.stream_id if isinstance(stream, torch.Stream) else stream
    entries = [Entry(*each) for each in _C.schedule()]
    return sorted(
        (each for each in entries if each.device == device and wanted in (None, each.stream)),
        key=lambda each: (each.start, each.end),
    )


def clear_schedule() -> None:
    _C.clear_schedule()


# -- which code called

_labels = ["user"]


@contextmanager
def blame(label: str) -> Iterator[None]:
    """Counts this thread's calls under ``label`` inside the block. All other calls are counted under ``user``."""
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
    """Lists (call, file:line) of every counted call from a file whose path has this part. ``callers("/torch_hooks/")``
    has what whyidle's hooks called, from any thread, but not the calls inside the functions that they wrap."""
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
    """The device indices with a context: something was allocated, queued or synchronized there."""
    return [_C.touched(index) for index in range(_C.DEVICES)]


def forget_contexts() -> None:
    _C.forget_contexts()


# -- capture


class Graph:
    """A captured graph. ``replay`` queues it again on the streams from which it was captured."""

    def __init__(self) -> None:
        self._captured: Any = None

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Inside the block nothing runs, queries and synchronizations raise, and recording an event is a fault."""
        _C.begin_capture()
        try:
            yield
        finally:
            self._captured = _C.end_capture()

    def replay(self) -> None:
        self._captured.replay()
