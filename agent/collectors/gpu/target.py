"""One GPU, or one MIG device, and how it is asked: what it does not support is not asked again for a while."""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import c_void_p

from ...reading import Reading
from .nvml import GPU_IS_LOST, NOT_SUPPORTED, RESET_REQUIRED, UNINITIALISED, Function, Nvml, NvmlError, reason_of

ASK_AGAIN_SECONDS = 300.0
"""A driver may come to support a call while it runs: a MIG mode that changes, a setting that is made."""


class Lost(Exception):
    """The GPU fell off the bus, or needs a reset."""


class Uninitialised(Exception):
    """The library forgot us: the driver was loaded anew."""


class Target:
    """A device under its handle. ``begin`` each round first."""

    __slots__ = ("_refused", "clock", "handle", "labels", "now", "nvml", "reading", "uuid")

    def __init__(self, nvml: Nvml, handle: c_void_p, gpu: str, uuid: str, clock: Callable[[], float]):
        self.nvml = nvml
        self.clock = clock
        self.handle = handle
        self.uuid = uuid
        self.labels = (gpu, uuid)
        self.now = 0.0
        self.reading = Reading()
        self._refused: dict[str, float] = {}

    def begin(self, reading: Reading, now: float) -> None:
        """``now`` is of ``clock``, as time.monotonic."""
        self.reading = reading
        self.now = now

    def asks(self, key: str) -> bool:
        """Whether a call, or a part of one, is worth asking for: it was not refused as unsupported of late."""
        return not self._refused or self._refused.get(key, 0.0) <= self.now

    def refuse(self, key: str) -> None:
        """The device does not support this: not asked again for a while."""
        self._refused[key] = self.now + ASK_AGAIN_SECONDS

    def function(self, *names: str) -> Function | None:
        """The function, if the library has it and this device did not refuse it."""
        return self.nvml.function(*names) if self.asks(names[0]) else None

    def answered(self, code: int, call: str, key: str = "") -> bool:
        """Whether a return code is success. A refusal is remembered, anything else is counted.

        ``key`` tells the parts of a call apart, where they are supported or not by themselves. Raises Lost and
        Uninitialised.
        """
        if not code:
            return True
        if code == NOT_SUPPORTED:
            self.refuse(key or call)
        else:
            self.failed(code, call)
        return False

    def failed(self, code: int, call: str) -> None:
        """Counts an error. Raises Lost and Uninitialised."""
        if code in (GPU_IS_LOST, RESET_REQUIRED):
            raise Lost(reason_of(code), call)
        if code == UNINITIALISED:
            raise Uninitialised(call)
        self.reading.error(self.uuid, call, reason_of(code))

    def garbage(self, call: str) -> None:
        """Counts a value that cannot be."""
        self.reading.error(self.uuid, call, "garbage")

    def text(self, call: str) -> str:
        """A string that never changes; empty, and counted, if it cannot be had."""
        try:
            return self.nvml.text(call, self.handle)
        except NvmlError as error:
            self.answered(error.code, call)
            return ""

    def number(self, call: str) -> int | None:
        """An unsigned int that seldom changes; None if it cannot be had."""
        try:
            return self.nvml.number(call, self.handle)
        except NvmlError as error:
            self.answered(error.code, call)
            return None


def is_ratio(value: float) -> bool:
    """Whether a value can be a percentage. Counters that are read one after the other may give a little above 100."""
    return math.isfinite(value) and 0.0 <= value <= 101.0
