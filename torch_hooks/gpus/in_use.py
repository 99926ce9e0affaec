"""Which devices the process has tensors on, and what torch's allocator did there. No call of the device.

The training thread asks now and then. A thread that waits for the allocator's lock would hold Python's lock meanwhile.
"""

from __future__ import annotations

from typing import Any

from ...ledger.gpus import DEVICES
from ...ledger.layout import WORD_AT

_USED_AT, _STEPS_AT, _LOOKED_AT, _RETRIES_AT, _FLUSHES_AT, _PEAK_AT, _RESERVED_AT, _TOTAL_AT = (
    WORD_AT[name][0]
    for name in (
        *("devices_used", "steps", "alloc_steps", "alloc_retries", "alloc_flushes"),
        *("memory_peak", "memory_reserved", "memory_total"),
    )
)


class InUse:
    """``module``: torch.cuda, which is initialized."""

    def __init__(self, words: memoryview[int], module: Any):
        self._words = words
        self._module = module
        self._devices = range(min(module.device_count(), DEVICES))
        self._first: tuple[int, int, int] | None = None  # steps, retries and flushes at the first look

    def look(self) -> None:
        words, retries, flushes = self._words, 0, 0
        for index in self._devices:
            found = self._module.memory_stats_as_nested_dict(index)
            tensors = found.get("allocated_bytes", {}).get("all", {})
            if not tensors.get("peak"):
                continue
            words[_USED_AT] |= 1 << index
            retries += found.get("num_alloc_retries", 0)
            flushes += found.get("num_sync_all_streams", 0)  # torch >= 2.3
            self._peak(index, tensors["peak"], found.get("reserved_bytes", {}).get("all", {}).get("peak", 0))
        now = words[_STEPS_AT], retries, flushes
        if self._first is None:
            self._first = now
        words[_LOOKED_AT], words[_RETRIES_AT], words[_FLUSHES_AT] = (
            max(0, last - first) for last, first in zip(now, self._first, strict=True)
        )

    def _peak(self, index: int, tensors: int, reserved: int) -> None:
        words = self._words
        if reserved > words[_RESERVED_AT]:
            words[_PEAK_AT], words[_RESERVED_AT] = tensors, reserved
            words[_TOTAL_AT] = self._module.get_device_properties(index).total_memory
