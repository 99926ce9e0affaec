"""Timing events of an accelerator for the device clock, and which device the training uses.

Works for every accelerator of torch: all their modules have the same interface for streams and events
(`torch.get_device_module`). CUDA and ROCm, which torch calls `cuda` too, use faster calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .device_clock import Asker

MOST_EVENTS = 8192
"""The most boundaries in flight. A step of FSDP2 with 80 layers has about 500, and a host runs a few steps ahead of its
device."""

Handle = tuple[int, Any]
"""(number of the home stream on which the event was recorded, event)."""


class DeviceEvents:
    """An EventSource on the home stream of one device, through torch's device-generic interface.

    The home stream is the training thread's current stream when `rehome` is called. Events are always recorded on it,
    even if another stream is current. Raises the errors of the device as torch does (RuntimeError). The device clock
    catches them; those of the constructor are for its caller to catch.
    """

    __slots__ = ("_captures", "_capturing", "_current", "_free", "_made", "_module", "_stream", "_turn", "device")

    def __init__(self, device: torch.device):
        self.device = device
        """The device, with its index."""
        self._module: Any = torch.get_device_module(device)
        self._free: list[Any] = []
        self._made = 0
        self._turn = 0
        self._captures = False  # whether a capture was running at the last boundary
        self._capturing: Callable[[], bool] = getattr(self._module, "is_current_stream_capturing", _never)
        self._current: Callable[[], Any] = self._current_stream()
        self._stream: Any = self._home_stream()
        # The first event is slow, and would distort the time of the first boundary. So it is recorded here.
        if (warm := self.record()) is not None:
            self.release(warm)

    # -- what differs between devices

    def _current_stream(self) -> Callable[[], Any]:
        """The fastest function that returns the calling thread's current stream, or its identity."""
        index, current = self.device.index, self._module.current_stream
        return lambda: current(index)

    def _home_stream(self) -> Any:
        return self._current()

    def _is_home(self, current: Any) -> bool:
        return current == self._stream

    def _new_event(self) -> Any:
        return self._module.Event(enable_timing=True)

    # -- the event source

    def rehome(self) -> bool:
        """At a step boundary: makes the training thread's current stream the home stream. Returns whether it is new."""
        if self._is_home(self._current()) or self._capturing():  # a capture uses its own stream
            return False
        self._stream = self._home_stream()
        self._turn += 1
        return True

    def at_home(self) -> bool:
        """Whether the calling thread's current stream is the home stream."""
        return self._is_home(self._current())

    def record_here(self) -> Handle | None:
        return None if self._capturing() else self._record_on(self._module.current_stream(self.device.index))

    def record(self) -> Handle | None:
        self._captures = self._capturing()
        if self._captures:  # the event would become a node of the graph
            return None
        return self._record_on(self._stream)

    def _record_on(self, stream: Any) -> Handle | None:
        free = self._free
        if free:
            event = free.pop()
        elif self._made < MOST_EVENTS:
            self._made += 1
            event = self._new_event()
        else:
            return None
        try:
            event.record(stream)
        except BaseException:
            free.append(event)
            raise
        return self._turn, event

    def awaited(self, event: Any) -> Handle:
        return self._turn, event

    def done(self, event: Handle) -> bool | None:
        # cudaEventQuery invalidates a capture in the global mode, torch's default (pytorch/pytorch#104487).
        if self._capturing():
            return None
        return event[1].query()

    def asker(self) -> Asker:
        """What asks the device, for the calling thread."""
        return _Asker(self)

    def captures(self) -> bool:
        """Whether a capture was running at the last boundary."""
        return self._captures

    @property
    def home(self) -> Any:
        """The home stream."""
        return self._stream

    def elapsed_ns(self, start: Handle, end: Handle) -> int | None:
        return round(start[1].elapsed_time(end[1]) * 1e6)

    def release(self, event: Handle) -> None:
        self._free.append(event[1])


class _Asker:
    """Asks through torch, which holds Python's lock meanwhile."""

    def __init__(self, events: DeviceEvents):
        self._events = events

    def passed(self, event: Handle) -> bool | None:
        return None if self._events.captures() else event[1].query()

    def empty(self) -> bool | None:
        return None if self._events.captures() else self._events.home.query()


class CudaEvents(DeviceEvents):
    """The events of CUDA and ROCm. Bypasses the Python layer of torch.cuda."""

    __slots__ = ("_home",)

    def _current_stream(self) -> Callable[[], Any]:
        index, raw = self.device.index, getattr(torch._C, "_cuda_getCurrentStream", None)
        if raw is None:
            return super()._current_stream()
        self._capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", self._capturing)
        return lambda: raw(index)

    def _home_stream(self) -> Any:
        self._home = self._current()
        return torch.cuda.current_stream(self.device.index)

    def _is_home(self, current: Any) -> bool:
        return current == self._home

    def asker(self) -> Asker:
        from .cuda_queries import Queries

        return Queries(self.device.index, lambda: self._stream.cuda_stream)

    def _new_event(self) -> Any:
        return torch._C._CudaEventBase(enable_timing=True, blocking=False, interprocess=False)


def events_of(device: torch.device) -> DeviceEvents:
    """The events of a device that is in use."""
    return (CudaEvents if device.type == "cuda" else DeviceEvents)(device)


def device_in_use(seen: torch.device | None = None) -> torch.device | None:
    """The accelerator that this process trains on, with its index; None if there is none yet.

    ``seen`` is the device of a loss, which is the best evidence. Before the first loss, returns a device that is
    initialized. Never initializes a device, and never creates a context on another device.
    """
    if seen is not None and seen.type != "cpu":
        module = _module(seen.type)
        if module is None:
            return None
        return torch.device(seen.type, module.current_device() if seen.index is None else seen.index)
    for kind, module in _accelerators():
        indices = _initialised(kind, module)
        if indices:
            current = module.current_device()
            return torch.device(kind, current if current in indices else indices[0])
    return None


def uuid_of(device: torch.device) -> str:
    """The UUID of a device, as torch gives it; empty if it has none."""
    try:
        return str(getattr(_module(device.type).get_device_properties(device.index), "uuid", ""))
    except Exception:  # not every kind of device has properties
        return ""


def allocated_on(device: torch.device) -> Callable[[], int]:
    """A function that returns how many bytes tensors take on the device; 0 if its module cannot tell."""
    allocated: Callable[[Any], int] | None = getattr(torch.get_device_module(device), "memory_allocated", None)
    return (lambda: 0) if allocated is None else (lambda: allocated(device))


def _accelerators() -> Iterator[tuple[str, Any]]:
    """The kinds of accelerators whose torch modules are loaded, with the modules."""
    own = getattr(torch._C, "_get_privateuse1_backend_name", lambda: "")()
    for kind in ("cuda", "xpu", "hpu", "mtia", own):
        if kind and (module := _module(kind)) is not None:
            yield kind, module


def _module(kind: str) -> Any:
    """torch.cuda, or the module of another kind, if it has streams and events."""
    module = sys.modules.get(f"torch.{kind}") or getattr(torch, kind, None)
    return module if hasattr(module, "current_stream") and hasattr(module, "Event") else None


def _initialised(kind: str, module: Any) -> list[int]:
    """The devices of a kind that have a context in this process."""
    try:
        if not module.is_initialized():
            return []
        has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None) if kind == "cuda" else None
        if has_context is not None:
            return [index for index in range(module.device_count()) if has_context(index)]
        return [module.current_device()]
    except Exception:  # a build without this kind of device may lack parts of its module
        return []


def _never() -> bool:
    return False
