"""How much of a rank's compute its device was idle: by the device's counters, and by the rank's looks at its stream."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

LEAST_LOOKS = 100
"""With fewer looks at a rank's stream (5 s), the share of empty ones is not known well enough to be counted."""


class Idle(NamedTuple):
    """What an agent knows of one rank, in seconds."""

    seconds: float
    """Compute in which no kernel ran on its GPU."""
    covered: float = 0.0
    """The compute for which integrated counters of the GPU (GPM) say this. 0: only samples of its utilisation do."""


class Gaps(NamedTuple):
    """Idle time in compute, in seconds. None: not known."""

    seconds: float | None = None
    error: float | None = None
    """The standard error; None: not from looks."""
    looked: float | None = None
    """According to the looks alone."""
    counted: float | None = None
    """According to the counters alone."""
    covered: float | None = None
    """The part of compute that integrated counters cover, up to 1. None: there are none."""

    @property
    def by_counters(self) -> bool:
        """Whether counters of the device decide most of it."""
        return self.error is None or (self.covered or 0.0) >= 0.5


NO_GAPS = Gaps()


def gaps(compute: float, idle: Idle | None, looks: int, empty: int, seconds: float) -> Gaps:
    """``empty`` of ``looks`` at the stream in ``seconds`` found it without work in ``compute`` seconds of compute.

    Integrated counters are within two points of a profiler, and looks only within ten where the host is hardly ahead of
    its device (docs/device-clock.md). So these counters decide where they cover compute, and looks decide about the
    rest. Samples of the utilisation are not better than looks, so the smaller of these two figures counts: it includes
    idle time in waits of the host, and looks find too much where kernels are very short.
    """
    looked = error = None
    if looks >= LEAST_LOOKS:
        share = min(1.0, empty / looks)
        looked = min(compute, share * seconds)
        # Of a binomial share. The looks are at random times in equal periods, so it is rather smaller.
        error = seconds * sqrt(share * (1 - share) / looks)
    if idle is None:
        return Gaps(looked, error, looked)
    found = min(max(0.0, idle.seconds), compute)
    if idle.covered <= 0:
        if looked is None or looked > found:
            return Gaps(found, None, looked, found)
        return Gaps(looked, error, looked, found)
    covered = min(1.0, idle.covered / compute) if compute > 0 else 1.0
    rest = 1 - covered
    return Gaps(
        min(compute, found + (looked or 0.0) * rest),
        error * rest if error is not None and rest else None,
        looked,
        min(compute, found / covered) if covered else found,
        covered,
    )
