"""Calls NVML for one GPU or MIG device. Calls that the device does not support are not repeated for a while."""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import c_void_p

from ...reading import Reading
from .nvml import GPU_IS_LOST, NOT_SUPPORTED, RESET_REQUIRED, UNINITIALISED, Function, Nvml, NvmlError, reason_of

ASK_AGAIN_SECONDS = 300.0
"""Pause before an unsupported call is tried again. It may become supported, for example if the MIG mode changes."""


class Lost(Exception):
    """The GPU fell off the bus, or needs a reset."""


class Uninitialised(Exception):
    """NVML reports that it is not initialised, because the driver was reloaded."""


class Target:
    """A device and its handle. Call ``begin`` at the start of each round."""

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
        """Starts a round. ``now`` is a time of ``clock``, in seconds."""
        self.reading = reading
        self.now = now

    def asks(self, key: str) -> bool:
        """Whether to make a call, or a part of one: false if it was refused as unsupported recently."""
        return not self._refused or self._refused.get(key, 0.0) <= self.now

    def refuse(self, key: str) -> None:
        """Remembers that the device does not support this, so that it is not asked again for a while."""
        self._refused[key] = self.now + ASK_AGAIN_SECONDS

    def function(self, *names: str) -> Function | None:
        """The function, or None if the library lacks it or the device refused it recently."""
        return self.nvml.function(*names) if self.asks(names[0]) else None

    def answered(self, code: int, call: str, key: str = "") -> bool:
        """Whether a return code means success. "Not supported" is remembered, other errors are counted.

        ``key`` names a part of a call, if the device may support some parts only. Raises Lost and Uninitialised.
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
        """Counts an impossible value as a read error."""
        self.reading.error(self.uuid, call, "garbage")

    def text(self, call: str) -> str:
        """Calls a function for a string that never changes. Returns an empty string and counts the error on failure."""
        try:
            return self.nvml.text(call, self.handle)
        except NvmlError as error:
            self.answered(error.code, call)
            return ""

    def number(self, call: str) -> int | None:
        """Calls a function for an unsigned int that rarely changes. Returns None and counts the error on failure."""
        try:
            return self.nvml.number(call, self.handle)
        except NvmlError as error:
            self.answered(error.code, call)
            return None


def is_ratio(value: float) -> bool:
    """Whether a value can be a percentage. Up to 101 is accepted, because counters are not read at the same moment."""
    return math.isfinite(value) and 0.0 <= value <= 101.0
