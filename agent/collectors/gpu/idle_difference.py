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
spin. If a backend blocks the host instead (gloo), the wait counts as idle compute, up to the amount of compute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from ....ledger.cause_rows import CAUSE_ROWS
from ....ledger.causes import CAUSE, WORK_CAUSES

COMPUTE = tuple(CAUSE[cause] for cause in WORK_CAUSES)
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


class ComputeIdle:
    """The idle compute of one rank. Starts at 0."""

    __slots__ = ("_before", "_compute", "_difference", "_recent", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._compute = 0.0
        self._difference = 0.0
        self._recent: deque[tuple[float, float]] = deque()  # (time, difference at that time)
        self._before: tuple[float, float, float, float, float] | None = None

    def restart(self) -> None:
        """Starts a new comparison at the next look, because the rank has a new process."""
        self._before = None

    def end(self) -> float:
        """The final seconds of idle compute, after the rank has ended."""
        if self._recent:
            last = self._recent[-1][0]
            lowest = min(difference for at, difference in self._recent if at >= last - ENDED_SECONDS)
            self.seconds = max(self.seconds, min(lowest, self._compute))
        return self.seconds

    def add(self, until: float, cause_seconds: Sequence[float], points: ActivityPoints) -> float:
        """Adds what the ledger has up to ``until``. Returns the seconds of idle compute so far.

        ``cause_seconds`` has one entry per cause.
        """
        known = points.at(until)
        if known is None:
            self._before = None
            return self.seconds
        idle, observed = known
        ledger_idle = sum(cause_seconds[index] for index in _IDLE)
        compute = sum(cause_seconds[index] for index in COMPUTE)
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
        """Raises the result to the minimum of the difference over STEADY_SECONDS, but at most to the compute."""
        recent = self._recent
        recent.append((until, self._difference))
        while len(recent) > 1 and recent[1][0] <= until - STEADY_SECONDS:
            recent.popleft()
        if recent[0][0] <= until - STEADY_SECONDS:
            lowest = min(difference for _, difference in recent)
            self.seconds = max(self.seconds, min(lowest, self._compute))
