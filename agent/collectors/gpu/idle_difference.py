"""How much of a rank's compute its GPU was idle: launch gaps, synchronisations and Python between kernels.

The ledger of a rank on CUDA says in which seconds the phases kept the GPU waiting; the rest it calls compute or
collective. The GPU's own activity says in which seconds no kernel ran. What is idle by the latter and not by the former
is idle compute:

    idle compute = max(0, idle seen on the GPU - idle in the rank's causes)

Both sides are compared up to the same moment, the one up to which the ledger accounts, and as sums from the first look
on: an error at one moment (the GPU's side is only known at the looks, and the driver's samples lag) is then taken back
at the next, and does not add up. What is exported is what the difference has stayed above for a minute; when the rank
has ended, for the last seconds.

It is a lower bound where other processes use the GPU. A wait in a collective counts as busy, since NCCL's kernels spin;
one that blocks the host instead (gloo) would be taken for idle compute, as far as there is compute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from ....ledger.causes import CAUSES

BUSY_CAUSES = frozenset({"compute", "recompute", "network", "straggler", "collective"})
_COMPUTE = tuple(index for index, cause in enumerate(CAUSES) if cause in ("compute", "recompute"))
_IDLE = tuple(index for index, cause in enumerate(CAUSES) if cause not in BUSY_CAUSES)

STEADY_SECONDS = 60.0
ENDED_SECONDS = 15.0
"""The same at a rank's end, which no later look can correct: longer than the driver's samples lag and a look takes."""
POINTS = 256
OBSERVED_LEAST = 0.9
"""A stretch of which less was observed is left out."""
DEBT_SECONDS = 5.0
"""Kernels that ran in idle causes (a checkpoint's copies) are held against idle compute up to so much."""


class ActivityPoints:
    """What a GPU's integrals were at the last looks: seconds of the clock, idle and observed seconds so far."""

    __slots__ = ("_idle", "_observed", "_times")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=POINTS)
        self._idle: deque[float] = deque(maxlen=POINTS)
        self._observed: deque[float] = deque(maxlen=POINTS)

    def add(self, at: float, busy: float, observed: float) -> None:
        """What the time up to ``at`` has added."""
        if self._times and at <= self._times[-1]:
            return
        self._idle.append((self._idle[-1] if self._idle else 0.0) + max(0.0, observed - busy))
        self._observed.append((self._observed[-1] if self._observed else 0.0) + observed)
        self._times.append(at)

    def at(self, moment: float) -> tuple[float, float] | None:
        """Idle and observed seconds up to a moment, between two looks in proportion; None outside of them."""
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


class ComputeIdle:
    """The counter of one rank, from 0 on."""

    __slots__ = ("_before", "_compute", "_difference", "_recent", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._compute = 0.0
        self._difference = 0.0
        self._recent: deque[tuple[float, float]] = deque()  # when, difference then
        self._before: tuple[float, float, float, float, float] | None = None

    def restart(self) -> None:
        """Another process of the rank: compare from its next look on."""
        self._before = None

    def end(self) -> float:
        """The rank has ended -> its seconds of idle compute."""
        if self._recent:
            last = self._recent[-1][0]
            lowest = min(difference for at, difference in self._recent if at >= last - ENDED_SECONDS)
            self.seconds = max(self.seconds, min(lowest, self._compute))
        return self.seconds

    def add(self, until: float, cause_seconds: Sequence[float], points: ActivityPoints) -> float:
        """Takes what the ledger accounts for up to ``until`` -> the seconds of idle compute so far."""
        known = points.at(until)
        if known is None:
            self._before = None
            return self.seconds
        idle, observed = known
        ledger_idle = sum(cause_seconds[index] for index in _IDLE)
        compute = sum(cause_seconds[index] for index in _COMPUTE)
        before, self._before = self._before, (until, idle, observed, ledger_idle, compute)
        if before is None or until <= before[0]:
            return self.seconds
        if observed - before[2] >= OBSERVED_LEAST * (until - before[0]):
            self._compute += max(0.0, compute - before[4])
            change = (idle - before[1]) - (ledger_idle - before[3])
            self._difference = max(self._difference + change, self.seconds - DEBT_SECONDS)
            self._settle(until)
        return self.seconds

    def _settle(self, until: float) -> None:
        """Raises the sum to what the difference has not been below for a while, and compute allows."""
        recent = self._recent
        recent.append((until, self._difference))
        while len(recent) > 1 and recent[1][0] <= until - STEADY_SECONDS:
            recent.popleft()
        if recent[0][0] <= until - STEADY_SECONDS:
            lowest = min(difference for _, difference in recent)
            self.seconds = max(self.seconds, min(lowest, self._compute))
