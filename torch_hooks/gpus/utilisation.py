"""How busy the devices of a process are, if it uses several: NVML's utilisation, from the watcher's thread.

The streams do not tell. A device that waits for another one has work in its stream, and runs no kernel.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

from ...ledger.gpus import DEVICES
from ...ledger.layout import WORD_AT
from ..cuda_queries import runtime

PERIOD_SECONDS = 0.2
"""The driver takes the mean of a sixth of a second or longer."""
_USED_AT, _LOOKS_AT, _BUSY_AT, _WINDOW_AT = (
    WORD_AT[name][0] for name in ("devices_used", "device_looks", "device_busy", "window_ns")
)


class Utilisation:
    """A probe. ``uuid_of``: device index -> its UUID as NVML writes it. Raises OSError without NVML, or if it refuses.

    A call through ctypes does not hold Python's lock.
    """

    def __init__(self, words: memoryview[int], uuid_of: Callable[[int], str]):
        self._words = words
        self._uuid_of = uuid_of
        self._nvml: ctypes.CDLL | None = None
        self._handles: dict[int, ctypes.c_void_p] = {}

    def look(self) -> None:
        words = self._words
        used = [index for index in range(DEVICES) if words[_USED_AT] >> index & 1]
        if len(used) < 2 or not words[_WINDOW_AT]:
            return
        busy = [self._busy(index) for index in used]
        self._write(used, busy)

    def _write(self, used: Sequence[int], busy: Sequence[int]) -> None:
        words = self._words
        words[_LOOKS_AT] += 1
        for index, percent in zip(used, busy, strict=True):
            words[_BUSY_AT + index] += 10 * min(percent, 100)

    def _busy(self, index: int) -> int:
        """Percent of the last moments in which the device ran a kernel."""
        nvml = self._nvml or self._load()
        handle = self._handles.get(index)
        if handle is None:
            handle = ctypes.c_void_p()
            uuid = self._uuid_of(index).encode()
            _check(nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)))
            self._handles[index] = handle
        rates = (ctypes.c_uint * 2)()  # of the GPU, of its memory
        _check(nvml.nvmlDeviceGetUtilizationRates(handle, rates))
        return rates[0]

    def _load(self) -> ctypes.CDLL:
        name = "libnvidia-ml.so.1"
        try:
            nvml = ctypes.CDLL(name)
        except OSError:
            nvml = ctypes.CDLL(os.path.join(os.path.dirname(runtime()[0]), name))
        _check(nvml.nvmlInit_v2())
        self._nvml = nvml
        return nvml


def _check(error: int) -> None:
    if error:
        raise OSError(f"NVML refuses with error {error}")
