"""When the device worked, by Kineto (torch.profiler): kernels, copies and fills of all streams."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_RUNS = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")

Spans = list[tuple[int, int]]
"""Ordered spans of time that do not overlap, in ns of time.time_ns()."""


class Trace:
    """What a `recorded` block has seen; complete at its end. Empty where Kineto cannot record."""

    def __init__(self) -> None:
        self.busy: Spans = []
        """When a kernel, a copy or a fill ran."""
        self.owed: Spans = []
        """When the device had work: something ran, or the host had launched it. The time from the launch to the start,
        and between two launched kernels, is not idle time that the host causes."""
        self.pageable: Spans = []
        """Copies between the device and memory that is not pinned. The host copies most of the time, in parts."""


@contextmanager
def recorded() -> Iterator[Trace]:
    from torch.profiler import ProfilerActivity, profile

    trace, profiler = Trace(), profile(activities=[ProfilerActivity.CUDA])
    try:
        profiler.start()
    except RuntimeError:
        yield trace
        return
    try:
        yield trace
    finally:
        profiler.stop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        _read(json.loads(path.read_text()), trace)


def _read(kept: dict[str, Any], trace: Trace) -> None:
    base = int(kept.get("baseTimeNanoseconds", 0))
    launched: dict[int, int] = {}
    ran: list[tuple[int, int, int]] = []
    pageable: Spans = []
    for event in kept["traceEvents"]:
        kind = event.get("cat")
        if event.get("ph") != "X" or (kind not in _RUNS and kind not in _LAUNCHES):
            continue
        begun = base + round(event["ts"] * 1e3)
        ended, number = begun + round(event["dur"] * 1e3), event.get("args", {}).get("correlation", -1)
        if kind in _RUNS:
            ran.append((begun, ended, number))
            if "Pageable" in event["name"]:
                pageable.append((begun, ended))
        else:
            launched[number] = ended
    trace.busy = union((begun, ended) for begun, ended, _ in ran)
    trace.pageable = union(pageable)
    trace.owed = union((min(begun, launched.get(number, begun)), ended) for begun, ended, number in ran)


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    found: Spans = []
    begin = end = 0
    for start, stop in sorted(spans):
        if start > end:
            if end:
                found.append((begin, end))
            begin, end = start, stop
        elif stop > end:
            end = stop
    if end:
        found.append((begin, end))
    return found


def length(spans: Spans) -> int:
    return sum(end - begin for begin, end in spans)


def within(spans: Spans, others: Spans) -> Spans:
    """The parts of ``spans`` that are also in ``others``."""
    found: Spans = []
    at = 0
    for begin, end in spans:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        number = at
        while number < len(others) and others[number][0] < end:
            found.append((max(begin, others[number][0]), min(end, others[number][1])))
            number += 1
    return found


def share_idle(busy: Spans, window: tuple[int, int], places: Spans | None = None) -> float:
    """The share of a window in which the device did not work, inside some places; None: anywhere."""
    inside = [window] if places is None else within(places, [window])
    return (length(inside) - length(within(inside, busy))) / (window[1] - window[0])
