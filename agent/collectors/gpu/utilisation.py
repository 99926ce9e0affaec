"""Integrates the driver's samples of a GPU's utilisation, each of them once. Pure arithmetic.

Time that no sample covers is not observed: it counts neither as busy nor as idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

PERIOD_US = 166_667
"""The assumed period of samples until it has been measured. NVML documents 1/6 s to 1 s, depending on the product."""
PERIOD_MOST_US = 1_500_000
LATE = 2.0
"""If a sample comes later than this many periods after the previous one, there was a gap."""


@dataclass(slots=True)
class Increase:
    """The activity since the last look, in seconds."""

    busy: float = 0.0
    observed: float = 0.0
    bad: int = 0  # number of samples that are not a percentage; their time is not observed


class SampleIntegral:
    """∫ utilisation dt from samples in percent. By NVML's definition, a sample covers the time since the previous one.

    The first batch of samples only sets the start time. After a gap (the buffer overflowed, or the machine slept), a
    sample covers one period, and the rest of the gap is not observed.
    """

    __slots__ = ("_period_us", "seen_us")

    def __init__(self) -> None:
        self.seen_us = 0
        """Time of the newest sample so far, in µs of the driver's clock; 0 before the first."""
        self._period_us: float = PERIOD_US

    def add(self, samples: Sequence[tuple[int, float]]) -> Increase:
        """Adds samples (time in µs, percent), which must be in order of time. Samples seen before are ignored."""
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
        """Starts again at the next sample, because the clock was set."""
        self.seen_us = 0

    def _learn(self, times: Sequence[int]) -> None:
        """Sets the period to the median gap of a batch, so that a single late or lost sample does not matter."""
        gaps = [after - before for before, after in pairwise(times) if after > before]
        if len(gaps) >= 3:
            self._period_us = min(median(gaps), PERIOD_MOST_US)


def split_unhooked(
    interval: float, increase: Increase, *, occupied: bool, longest: float
) -> tuple[float, float, float]:
    """Splits the time since the last look of a GPU without a ledger. Returns seconds (busy, idle, empty).

    Only observed time can be busy or idle. A GPU that is in use at neither end of the interval counts as empty for all
    of it, unless the interval is longer than ``longest``: it may have been in use in between.
    """
    if occupied or increase.busy > 0:
        busy = min(increase.busy, increase.observed)
        return busy, increase.observed - busy, 0.0
    return 0.0, 0.0, interval if interval <= longest else 0.0
