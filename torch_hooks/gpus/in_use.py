"""Which devices the process has tensors on, and what torch's allocator did there. No call of the device.

The training thread asks now and then. A thread that waits for the allocator's lock would hold Python's lock meanwhile.
"""

from __future__ import annotations

from itertools import cycle
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
    """``module``: torch.cuda, which is initialized. ``home``: the device whose clock drives the machine. A look at one
    device costs some 50 µs, so each look is at that one, and at one of the others in turn."""

    def __init__(self, words: memoryview[int], module: Any, home: int):
        self._words = words
        self._module = module
        self._home = home
        self._others = cycle([one for one in range(min(module.device_count(), DEVICES)) if one != home])
        self._begun: int | None = None  # steps at the first look
        self._first: dict[int, tuple[int, int]] = {}  # device -> retries and flushes at the first look
        self._last: dict[int, tuple[int, int]] = {}  # and at the last one

    def look(self) -> None:
        words = self._words
        if self._begun is None:
            self._begun = words[_STEPS_AT]
        for index in {self._home, next(self._others, self._home)}:
            self._look_at(index)
        words[_LOOKED_AT] = max(0, words[_STEPS_AT] - self._begun)
        for kind, at in enumerate((_RETRIES_AT, _FLUSHES_AT)):
            words[at] = sum(max(0, last[kind] - self._first[index][kind]) for index, last in self._last.items())

    def _look_at(self, index: int) -> None:
        found = self._module.memory_stats_as_nested_dict(index)
        tensors = found.get("allocated_bytes", {}).get("all", {})
        if not tensors.get("peak"):
            return
        self._words[_USED_AT] |= 1 << index
        # torch >= 2.3 has num_sync_all_streams
        self._last[index] = found.get("num_alloc_retries", 0), found.get("num_sync_all_streams", 0)
        self._first.setdefault(index, self._last[index])
        self._peak(index, tensors["peak"], found.get("reserved_bytes", {}).get("all", {}).get("peak", 0))

    def _peak(self, index: int, tensors: int, reserved: int) -> None:
        words = self._words
        if reserved > words[_RESERVED_AT]:
            words[_PEAK_AT], words[_RESERVED_AT] = tensors, reserved
            words[_TOTAL_AT] = self._module.get_device_properties(index).total_memory
