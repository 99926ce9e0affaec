"""How a run has changed since its first steps: slower steps and what made them slower, a cold start, growing memory.

Pure functions over the snapshots of the ledgers (ledger/snapshots.py). Two snapshots give an interval with its number
of steps and its seconds by cause. The first steps up to the first snapshot are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

from ..ledger.causes import CAUSE_ROW, CAUSES
from ..ledger.reader import Ledger
from ..ledger.snapshots import Snapshot, grown
from .words import time_of

LEAST_INTERVALS, LEAST_STEPS = 20, 40
"""With fewer, nothing is said of a change."""
LEAST_PART = 5
"""The first and the last tenth have at least this many intervals."""
PART = 0.1
"""A change is said if the last tenth of the run differs from the first by more than this part."""
SURE = 0.9
"""... and if this part of all pairs of an early and a late interval differ in the same direction."""
MEMORY_PART, MEMORY_BYTES = 0.05, 64 << 20
"""Memory grows if it has grown by both in the second half of the run, and in SURE of the intervals there."""
MEMORY_INTERVALS = 12
SUDDEN = 0.5
"""A change was sudden if two levels leave at most this part of the squared error that a straight line leaves."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A change over the run. Times in seconds, per step."""

    rank: int
    kind: str
    """`slower`, `cold` (the first part was slower), `memory` or `device_memory`."""
    cause: str
    """The cause that has changed most; empty for memory."""
    before: float
    """A step in the first part, in seconds, or bytes."""
    after: float
    grown: float
    """How much of the change is of that cause."""
    step: int
    """The last step before a sudden change; of a steady one, 0."""
    unix: float
    """When that was; 0 for a steady change."""
    over: float = 0.0
    """For how many seconds it has grown, for memory."""
    steady: bool = False
    """Whether a straight line describes it, and better than two levels do."""

    @property
    def sentence(self) -> str:
        """The change in one sentence."""
        if self.kind in ("memory", "device_memory"):
            what = "memory" if self.kind == "memory" else "memory on the device"
            rate = (self.after - self.before) / max(self.over, 1e-9) * 60
            return (
                f"rank {self.rank}: its {what} only grows: {_size(self.before)} to {_size(self.after)} "
                f"in {_span(self.over)}, {_size(rate)} a minute"
            )
        row = CAUSE_ROW[self.cause]  # snapshots have all waits for other ranks under one cause
        moved = "waiting for other ranks" if row.place == "waits" else f"{row.words} ({self.cause})"
        if self.kind == "cold":
            return (
                f"the first {self.step} steps took {time_of(self.before)} each, later ones {time_of(self.after)}: "
                f"{time_of(self.grown)} more {moved}"
            )
        since = (
            f", since step {self.step} ({_clock(self.unix)})"
            if self.step
            else ", steadily since the start" * self.steady
        )
        return (
            f"steps have become slower{since}: {time_of(self.before)} at first, {time_of(self.after)} now; "
            f"rank {self.rank} spends {time_of(self.grown)} more {moved}"
        )


def drifts(newest: Sequence[Ledger]) -> list[Drift]:
    """The changes over a run, at most one of its steps and one of each memory. ``newest``: the last ledger of each
    rank."""
    stepwise = [found for ledger in newest if (found := _steps(ledger)) is not None]
    # A rank that is slower by itself explains those that wait for it.
    own = [found for found in stepwise if CAUSE_ROW[found.cause].place != "waits"]
    first = sorted(own or stepwise, key=lambda found: -found.grown)[:1]
    memory = [found for ledger in newest for found in _memory(ledger)]
    worst = {found.kind: found for found in sorted(memory, key=lambda found: found.after - found.before)}
    return [*first, *worst.values()]


def _steps(ledger: Ledger) -> Drift | None:
    intervals = _intervals(ledger.snapshots)
    if len(intervals) < LEAST_INTERVALS or sum(each.steps for each in intervals) < LEAST_STEPS:
        return None
    walls = [each.end_ns / each.steps / 1e9 for each in intervals]
    tenth = max(LEAST_PART, len(intervals) // 10)
    slower, faster = _ordered(walls[:tenth], walls[-tenth:]), _ordered(walls[-tenth:], walls[:tenth])
    before, after = mean(walls[:tenth]), mean(walls[-tenth:])
    at = _split(walls)
    if slower >= SURE and after > before * (1 + PART):
        sudden = _is_sudden(walls, at)
        cause, more = _changed(intervals[:tenth], intervals[-tenth:])
        step, moment = (_place(ledger, at)) if sudden else (0, 0.0)
        return Drift(
            ledger.rank, "slower", cause, before, after, more, step, moment, steady=not sudden and _is_steady(walls, at)
        )
    if faster >= SURE and at <= len(walls) // 2:
        before, after = mean(walls[:at]), mean(walls[at:])
        if before > after * (1 + PART) and _is_sudden(walls, at):
            cause, more = _changed(intervals[at:], intervals[:at])
            return Drift(ledger.rank, "cold", cause, before, after, more, *_place(ledger, at))
    return None


def _intervals(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    return [grown(one, other) for one, other in pairwise(snapshots)]


def _ordered(early: Sequence[float], late: Sequence[float]) -> float:
    """The part of all pairs in which the late one is larger."""
    return mean([other > one for one in early for other in late])


def _changed(early: Sequence[Snapshot], late: Sequence[Snapshot]) -> tuple[str, float]:
    """The cause that has grown most per step, and by how many seconds."""
    per_step = [
        [sum(each.causes[cause] for each in part) / sum(each.steps for each in part) for cause in range(len(CAUSES))]
        for part in (early, late)
    ]
    more = [after - before for before, after in zip(*per_step, strict=True)]
    cause = max(range(len(CAUSES)), key=more.__getitem__)
    return CAUSES[cause], more[cause] / 1e9


def _split(values: Sequence[float]) -> int:
    """The place at which two levels fit best."""
    return min(range(1, len(values)), key=lambda at: _error(values[:at]) + _error(values[at:]))


def _error(values: Sequence[float]) -> float:
    centre = mean(values)
    return sum((value - centre) ** 2 for value in values)


def _is_sudden(values: Sequence[float], at: int) -> bool:
    return _error(values[:at]) + _error(values[at:]) <= SUDDEN * _line_error(values)


def _is_steady(values: Sequence[float], at: int) -> bool:
    line = _line_error(values)
    return line <= min(SUDDEN * _error(values), _error(values[:at]) + _error(values[at:]))


def _line_error(values: Sequence[float]) -> float:
    """The squared error that a straight line leaves."""
    count = len(values)
    centre = (count - 1) / 2
    slope = sum((index - centre) * value for index, value in enumerate(values)) / sum(
        (index - centre) ** 2 for index in range(count)
    )
    level = mean(values)
    return sum((value - level - slope * (index - centre)) ** 2 for index, value in enumerate(values))


def _place(ledger: Ledger, at: int) -> tuple[int, float]:
    """The last step before the interval ``at``, and when it ended, in Unix seconds."""
    snapshot = ledger.snapshots[at]
    return ledger.base_step + snapshot.steps, (ledger.created_unix_ns + snapshot.end_ns - ledger.created_ns) / 1e9


def _memory(ledger: Ledger) -> list[Drift]:
    half = ledger.snapshots[len(ledger.snapshots) // 2 :]
    if len(half) < MEMORY_INTERVALS:
        return []
    found = []
    for kind in ("memory", "device_memory"):
        sizes = [each.memory_bytes if kind == "memory" else each.device_bytes for each in half]
        rises = mean([after > before for before, after in pairwise(sizes)])
        more = median(sizes[-3:]) - median(sizes[:3])
        if sizes[0] and rises >= SURE and more >= max(MEMORY_BYTES, MEMORY_PART * sizes[0]):
            over = (half[-1].end_ns - half[0].end_ns) / 1e9
            found.append(Drift(ledger.rank, kind, "", sizes[0], sizes[-1], more, 0, 0.0, over))
    return found


def _size(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _span(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _clock(unix: float) -> str:
    return time.strftime("%H:%M" if time.time() - unix < 86400 else "%Y-%m-%d %H:%M", time.localtime(unix))
