"""Timing events of an accelerator for the device clock: which device the training uses, and how its streams are asked.

Any accelerator of torch's serves: its module has streams and events of one interface (`torch.get_device_module`). CUDA
and ROCm, which torch calls `cuda` too, have a shorter way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .device_clock import Question

MOST_EVENTS = 8192
"""Boundaries that may be in flight. A step of FSDP2 with 80 layers has some five hundred, and a host runs ahead of its
device by a few steps."""

Handle = tuple[int, Any]
"""(by which stream, event)"""


class DeviceEvents:
    """An EventSource on the home stream of one device, through torch's device-generic interface.

    The home stream is the training thread's current one when `rehome` is called. Events are recorded there, whichever
    stream is current. Errors of the device come out as torch raises them (RuntimeError): the device clock is the fence,
    and for the constructor whoever calls it.
    """

    __slots__ = ("_captures", "_capturing", "_current", "_free", "_made", "_module", "_stream", "_turn", "device")

    def __init__(self, device: torch.device):
        self.device = device
        """With its index."""
        self._module: Any = torch.get_device_module(device)
        self._free: list[Any] = []
        self._made = 0
        self._turn = 0
        self._captures = False  # at the last boundary
        self._capturing: Callable[[], bool] = getattr(self._module, "is_current_stream_capturing", _never)
        self._current: Callable[[], Any] = self._current_stream()
        self._stream: Any = self._home_stream()
        # What is slow the first time is done before the first boundary, whose time would be off by it.
        if (warm := self.record()) is not None:
            self.release(warm)

    # -- what differs between devices

    def _current_stream(self) -> Callable[[], Any]:
        """What tells the calling thread's current stream, or its identity, at the least cost."""
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
        """The training thread is at a step boundary: its current stream is home -> whether that is another one."""
        if self._is_home(self._current()) or self._capturing():  # a capture has a stream of its own
            return False
        self._stream = self._home_stream()
        self._turn += 1
        return True

    def at_home(self) -> bool:
        """Whether the calling thread's current stream is home."""
        return self._is_home(self._current())

    def record(self) -> Handle | None:
        self._captures = self._capturing()
        if self._captures:  # the event would become a node of the graph
            return None
        free = self._free
        if free:
            event = free.pop()
        elif self._made < MOST_EVENTS:
            self._made += 1
            event = self._new_event()
        else:
            return None
        try:
            event.record(self._stream)
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

    def questions(self) -> Question:
        """For the thread that calls this: whether an event has been passed; None where that may not be asked now."""
        return lambda event: None if self._captures else event[1].query()

    def elapsed_ns(self, start: Handle, end: Handle) -> int | None:
        return round(start[1].elapsed_time(end[1]) * 1e6)

    def release(self, event: Handle) -> None:
        self._free.append(event[1])


class CudaEvents(DeviceEvents):
    """The same for CUDA and ROCm, past the Python layer of torch.cuda."""

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

    def questions(self) -> Question:
        from .cuda_queries import Queries

        return Queries(self.device.index)

    def _new_event(self) -> Any:
        return torch._C._CudaEventBase(enable_timing=True, blocking=False, interprocess=False)


def events_of(device: torch.device) -> DeviceEvents:
    """The events of a device that is in use."""
    return (CudaEvents if device.type == "cuda" else DeviceEvents)(device)


def device_in_use(seen: torch.device | None = None) -> torch.device | None:
    """The accelerator that this process trains on, with its index; None where there is none yet.

    ``seen`` is where a loss was, which is the best there is to know. Before the first one, it is a device that has
    been initialised. No device is initialised here, and on no other one is a context made.
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
    """As its module has it; empty where it has none."""
    try:
        return str(getattr(_module(device.type).get_device_properties(device.index), "uuid", ""))
    except Exception:  # not every kind of device has properties
        return ""


def _accelerators() -> Iterator[tuple[str, Any]]:
    """The kinds of device whose modules are loaded."""
    own = getattr(torch._C, "_get_privateuse1_backend_name", lambda: "")()
    for kind in ("cuda", "xpu", "hpu", "mtia", own):
        if kind and (module := _module(kind)) is not None:
            yield kind, module


def _module(kind: str) -> Any:
    """torch.cuda, or its like, if it has streams and events."""
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
