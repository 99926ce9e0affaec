"""Takes the snapshots of the ledger's sums: see ledger/snapshots.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from mmap import mmap
from typing import cast

from ..ledger.causes import CAUSES
from ..ledger.layout import SNAPSHOTS_AT, WORD_AT
from ..ledger.snapshots import ENTRY, MOST, SPACING_NS

_TAKEN, _STEPS, _SAMPLES, _WAITED = (WORD_AT[name][0] for name in ("snapshots", "steps", "samples", "waited_ns"))
_CAUSES = slice(WORD_AT["cause_ns"][0], WORD_AT["cause_ns"][0] + len(CAUSES))
_AT, _SIZE = SNAPSHOTS_AT * 8, ENTRY.size
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Snapshots:
    """The caller holds the seqlock, and asks `due_ns` first."""

    __slots__ = ("_count", "_map", "_spacing", "_words", "allocated", "due_ns")

    def __init__(self, words: memoryview):
        self._words = words
        self._map = cast(mmap, words.obj)
        self._count = 0
        self._spacing = SPACING_NS
        self.allocated: Callable[[], int] = lambda: 0
        """How many bytes tensors take on the device."""
        self.due_ns = 0
        """From when on the end of a step takes the next one, ns of CLOCK_MONOTONIC."""

    def take(self, end_ns: int) -> None:
        """A step has ended at ``end_ns``, and its sums are in the ledger."""
        if self._count == MOST:
            self._thin()
        words = self._words
        sums = (words[_STEPS], words[_SAMPLES], _resident(), self.allocated(), words[_WAITED])
        ENTRY.pack_into(self._map, _AT + self._count * _SIZE, end_ns, *sums, *words[_CAUSES].tolist(), end_ns)
        self._count += 1
        words[_TAKEN] += 1
        self.due_ns = end_ns + self._spacing

    def _thin(self) -> None:
        """Keeps every second one, with the first."""
        for index in range(1, MOST // 2):
            self._map.move(_AT + index * _SIZE, _AT + 2 * index * _SIZE, _SIZE)
        self._count = MOST // 2
        rest = _AT + self._count * _SIZE
        self._map[rest : _AT + MOST * _SIZE] = bytes(_AT + MOST * _SIZE - rest)
        self._spacing *= 2


def _resident() -> int:
    """Bytes of resident memory of this process; 0 if that is not known."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            return int(statm.read(128).split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
