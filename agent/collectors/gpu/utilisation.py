"""Levels to integrals: what the driver remembers of a GPU's utilisation, summed up so that nothing counts twice.

Pure arithmetic. A second that no sample covers is in no sum: it is not observed, and neither busy nor idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

PERIOD_US = 166_667
"""How far apart samples are at least, until they have shown it themselves: NVML says 1/6 s to 1 s, by product."""
PERIOD_MOST_US = 1_500_000
LATE = 2.0
"""A sample that comes later than so many periods follows a gap."""


@dataclass(slots=True)
class Increase:
    """What one look added, in seconds."""

    busy: float = 0.0
    observed: float = 0.0
    bad: int = 0  # samples that are no percentage; their time is not observed


class SampleIntegral:
    """∫ utilisation dt from samples in percent, each of which stands for the time since the one before it.

    That is how NVML defines them. The first samples that it sees only say from when on to count. After a gap (the
    buffer overran, the machine slept) a sample stands for one period, and the rest of the gap is not observed.
    """

    __slots__ = ("_period_us", "seen_us")

    def __init__(self) -> None:
        self.seen_us = 0
        """Time of the newest sample so far, in µs of the driver's clock; 0 before the first."""
        self._period_us: float = PERIOD_US

    def add(self, samples: Sequence[tuple[int, float]]) -> Increase:
        """Takes samples (time in µs, percent) in the order of their times. Those seen before are left out."""
        start = self.seen_us
        fresh = [sample for sample in samples if sample[0] > start]
        increase = Increase()
        if not fresh:
            return increase
        self._learn([time for time, _ in fresh])
        if not start:
            self.seen_us = max(time for time, _ in fresh)
            return increase
        period, late = self._period_us, self._period_us * LATE
        busy = observed = 0.0
        before = start
        for time, percent in fresh:
            span = time - before
            if span <= 0:
                continue
            before = time
            if not 0 <= percent <= 100:
                increase.bad += 1
                continue
            if span > late:
                span = period
            observed += span
            busy += span * percent
        self.seen_us = before
        increase.busy = busy / 1e8
        increase.observed = observed / 1e6
        return increase

    def forget_time(self) -> None:
        """The driver's clock was set: count from the next sample on."""
        self.seen_us = 0

    def _learn(self, times: Sequence[int]) -> None:
        """The median gap of a batch: one late sample, or one lost, does not move it."""
        gaps = [after - before for before, after in pairwise(times) if after > before]
        if len(gaps) >= 3:
            self._period_us = min(median(gaps), PERIOD_MOST_US)


def split_unhooked(
    interval: float, increase: Increase, *, occupied: bool, longest: float
) -> tuple[float, float, float]:
    """The seconds of a GPU without a ledger since the last look -> busy, idle, empty.

    Only what was observed can be busy or idle. One that nobody uses, at neither end of the interval, is empty
    throughout, unless the interval is longer than ``longest``: in that time somebody may have come and gone.
    """
    if occupied or increase.busy > 0:
        busy = min(increase.busy, increase.observed)
        return busy, increase.observed - busy, 0.0
    return 0.0, 0.0, interval if interval <= longest else 0.0
