"""Computes a rank's idle compute: compute during which its GPU ran no kernel, because of launch gaps, synchronisations
or Python code between kernels.

The ledger of a rank on CUDA says for how long the GPU waited in phases such as data loading. The remaining time is
compute or collective. The GPU's own activity says for how long no kernel ran. The difference is idle compute:

    idle compute = max(0, idle seconds of the GPU - idle seconds in the rank's causes)

Both are sums from the first look up to the same moment, the one up to which the ledger accounts. So an error at one
moment is corrected at the next and does not add up. (There are such errors, because the GPU's activity is known only at
the looks, and the driver's samples lag.) The exported value is the minimum of the difference over the last minute, or
over the last 15 s once the rank has ended.

The result is a lower bound if other processes use the GPU. Waits in collectives count as busy, because NCCL's kernels
spin. If a backend blocks the host instead (gloo), the GPU is idle in them. So the truth is between the difference and
the difference minus these waits. If the rank has looked at its stream, its looks say where. Without waits they have no
say, because GPM is better than they are. The driver's samples are not, and the smaller figure counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ....ledger.cause_rows import CAUSE_ROWS
from ....ledger.causes import CAUSE, WORK_CAUSES

COMPUTE = tuple(CAUSE[cause] for cause in WORK_CAUSES)
_WAITS = tuple(index for index, row in enumerate(CAUSE_ROWS) if row.place == "waits" and row.gpu_busy)
_IDLE = tuple(index for index, row in enumerate(CAUSE_ROWS) if not row.gpu_busy)

STEADY_SECONDS = 60.0
ENDED_SECONDS = 15.0
"""Replaces STEADY_SECONDS when a rank has ended. Longer than the lag of the driver's samples and one look together."""
POINTS = 256
OBSERVED_LEAST = 0.9
"""An interval is left out if a smaller share of it was observed."""
DEBT_SECONDS = 5.0
"""Kernels that run in idle causes, such as a checkpoint's copies, reduce idle compute by at most this much."""


class ActivityPoints:
    """A GPU's integrals at the last looks: time of the look, idle seconds and observed seconds so far."""

    __slots__ = ("_idle", "_observed", "_times")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=POINTS)
        self._idle: deque[float] = deque(maxlen=POINTS)
        self._observed: deque[float] = deque(maxlen=POINTS)

    def add(self, at: float, busy: float, observed: float) -> None:
        """Adds the busy and observed seconds since the last look. ``at`` is the time of this look, in seconds."""
        if self._times and at <= self._times[-1]:
            return
        self._idle.append((self._idle[-1] if self._idle else 0.0) + max(0.0, observed - busy))
        self._observed.append((self._observed[-1] if self._observed else 0.0) + observed)
        self._times.append(at)

    def at(self, moment: float) -> tuple[float, float] | None:
        """Idle and observed seconds up to a moment, interpolated between two looks. None before or after all looks."""
        times = self._times
        if not times or not times[0] <= moment <= times[-1]:
            return None
        after = bisect_left(times, moment)
        if times[after] == moment:
            return self._idle[after], self._observed[after]
        share = (moment - times[after - 1]) / (times[after] - times[after - 1])
        return (
            self._idle[after - 1] + share * (self._idle[after] - self._idle[after - 1]),
            self._observed[after - 1] + share * (self._observed[after] - self._observed[after - 1]),
        )


class _Point(NamedTuple):
    """Sums up to a moment, in seconds."""

    at: float
    found: float
    covered: float


class _Sums(NamedTuple):
    at: float
    idle: float
    observed: float
    ledger_idle: float
    compute: float
    waits: float


class ComputeIdle:
    """The idle compute of one rank. Starts at 0.

    ``covered``: the compute for which GPM's counters say this.
    """

    __slots__ = ("_before", "_compute", "_covered", "_difference", "_recent", "_waits", "covered", "seconds")

    def __init__(self) -> None:
        self.seconds = self.covered = 0.0
        self._compute = self._covered = self._waits = 0.0
        self._difference = 0.0
        self._recent: deque[_Point] = deque()
        self._before: _Sums | None = None

    def restart(self) -> None:
        """Starts a new comparison at the next look, because the rank has a new process."""
        self._before = None

    def end(self) -> float:
        """The final seconds of idle compute, after the rank has ended."""
        if self._recent:
            last = self._recent[-1].at
            self._raise_to([point for point in self._recent if point.at >= last - ENDED_SECONDS])
        return self.seconds

    def add(
        self,
        until: float,
        cause_seconds: Sequence[float],
        points: ActivityPoints,
        looked: float | None = None,
        *,
        gpm: bool = False,
    ) -> float:
        """Adds what the ledger has up to ``until``. Returns the seconds of idle compute so far.

        ``cause_seconds`` has one entry per cause. ``looked``: what the rank's own looks have found so far; None if it
        has not looked. ``gpm``: whether the activity is from GPM.
        """
        known = points.at(until)
        if known is None:
            self._before = None
            return self.seconds
        ledger_idle, compute, waits = (
            sum(cause_seconds[index] for index in indices) for indices in (_IDLE, COMPUTE, _WAITS)
        )
        before, self._before = self._before, _Sums(until, *known, ledger_idle, compute, waits)
        if before is None or until <= before.at:
            return self.seconds
        new = _Sums(*(now - old for now, old in zip(self._before, before, strict=True)))
        if new.observed >= OBSERVED_LEAST * new.at:
            self._compute += max(0.0, new.compute)
            self._covered += max(0.0, new.compute) if gpm else 0.0
            self._waits += max(0.0, new.waits)
            self._difference = max(self._difference + new.idle - new.ledger_idle, self.seconds - DEBT_SECONDS)
            least = self._difference - self._waits if gpm else 0.0
            found = self._difference if looked is None else min(self._difference, max(looked, least))
            self._recent.append(_Point(until, found, self._covered))
            self._settle(until)
        return self.seconds

    def _settle(self, until: float) -> None:
        recent = self._recent
        while len(recent) > 1 and recent[1].at <= until - STEADY_SECONDS:
            recent.popleft()
        if recent[0].at <= until - STEADY_SECONDS:
            self._raise_to(recent)

    def _raise_to(self, recent: Sequence[_Point]) -> None:
        """Raises the result to the minimum of these points, but at most to the compute."""
        lowest = min(point.found for point in recent)
        self.seconds = max(self.seconds, min(lowest, self._compute))
        self.covered = max(self.covered, recent[0].covered)
