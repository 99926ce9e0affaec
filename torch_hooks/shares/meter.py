"""How long this rank itself needs for a unit of its share.

Measured is the rank's own time: everything but waits for other ranks. So a rank with a slow GPU has a large pace, and
so has one with slow storage, because each of its batches takes longer. What happens between steps and does not come
with units (checkpoints, garbage collection, compilation, starting workers) is left out. What happens in few steps
(evaluation, a slow logger) does not change the median.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import sqrt

from ...ledger.causes import CAUSE
from ...ledger.layout import WORD_AT
from .plan import Pace

PER_UNIT = (
    "compute",
    "recompute",
    "data_read",
    "data_cpu",
    "data_queue",
    "data_handoff",
    "host",
    "host_blocked",
    "unattributed",
)
"""The causes of the time that a rank needs for its units."""
SETTLING = 4
"""Steps after a change that do not count. An accelerator may be this far behind its host."""
ENOUGH = 8
"""The fewest steps that tell a pace."""
MOST = 256
_AT = [WORD_AT["cause_ns"][0] + CAUSE[cause] for cause in PER_UNIT]
_OF_MEAN = 1.2533
"""The standard error of a median is this many times that of a mean, for normal errors: sqrt(pi / 2)."""
_OF_DEVIATION = 1.4826
"""A standard deviation is this many times the median absolute deviation, for normal errors."""


class Meter:
    """The paces of the last steps of this rank."""

    def __init__(self) -> None:
        self._paces: deque[float] = deque(maxlen=MOST)
        self._before: int | None = None
        self._units = 0
        self._settling = SETTLING

    def step_begins(self, words: Sequence[int], units: int) -> None:
        """A step with this many units begins, so the one before has ended. ``words``: those of the ledger."""
        own = sum([words[at] for at in _AT])
        if self._before is not None and self._units:
            if self._settling:
                self._settling -= 1
            else:
                self._paces.append((own - self._before) / self._units)
        self._before, self._units = own, units

    def restart(self) -> None:
        """The shares change now."""
        self._paces.clear()
        self._settling = SETTLING

    def pace(self) -> Pace | None:
        """None if there are not enough steps yet, or if they took no time."""
        return pace_of(self._paces)


def pace_of(paces: Sequence[float]) -> Pace | None:
    """The median of the paces of some steps, in ns, and its error."""
    if len(paces) < ENOUGH:
        return None
    middle = _median(paces)
    spread = _OF_DEVIATION * _median([abs(pace - middle) for pace in paces])
    return Pace(int(middle), int(_OF_MEAN * spread / sqrt(len(paces)))) if middle >= 1 else None


def _median(values: Sequence[float]) -> float:
    """That of `statistics`, whose import takes some ms in each training process."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
