"""Timing events of CUDA (or ROCm) for the device clock: a ring per device, made once, recorded again and again."""

from __future__ import annotations

import torch

RING_EVENTS = 1024
"""Boundaries that may be in flight. A step has some twenty, and a host runs ahead by a few steps."""

Handle = tuple[int, torch.cuda.Event]
"""(device index, event)"""


def available() -> bool:
    """Whether this process has initialised CUDA. Never initialises it."""
    try:
        return torch.cuda.is_initialized()
    except Exception:  # a build without CUDA may lack parts of the module
        return False


class CudaEvents:
    """An EventSource on the current stream of the calling thread, on whichever device that stream lives.

    ``torch.cuda.Event`` creates its CUDA event at its first ``record``, so a ring costs Python objects only until its
    events are used. CUDA errors come out as torch raises them (RuntimeError): the device clock is the fence, and for
    the constructor whoever calls it.
    """

    __slots__ = ("_rings", "_size")

    def __init__(self, size: int = RING_EVENTS):
        self._size = size
        self._rings: dict[int, list[Handle]] = {}
        # What is slow the first time is done before the first boundary, whose time would be off by it.
        self.record()
        if (warm := self.record()) is not None:
            self.release(warm)

    def record(self) -> Handle | None:
        # current_stream() would initialise CUDA; in a capture the event would become a node of the graph.
        if not available() or torch.cuda.is_current_stream_capturing():
            return None
        stream = torch.cuda.current_stream()
        ring = self._rings.get(stream.device_index)
        if ring is None:
            # That takes a millisecond: the boundary is past by then, and counts as one without an event.
            self._rings[stream.device_index] = self._new_ring(stream.device_index)
            return None
        if not ring:
            return None
        handle = ring.pop()
        try:
            handle[1].record(stream)
        except BaseException:
            ring.append(handle)
            raise
        return handle

    def _new_ring(self, device: int) -> list[Handle]:
        return [(device, torch.cuda.Event(enable_timing=True)) for _ in range(self._size)]

    def done(self, event: Handle) -> bool | None:
        # cudaEventQuery invalidates a capture in the global mode, torch's default (pytorch/pytorch#104487).
        if torch.cuda.is_current_stream_capturing():
            return None
        return event[1].query()

    def elapsed_ns(self, start: Handle, end: Handle) -> int | None:
        if start[0] != end[0]:
            return None
        return round(start[1].elapsed_time(end[1]) * 1e6)

    def release(self, event: Handle) -> None:
        self._rings[event[0]].append(event)
