"""What benchmarks/advice.py knows of a run that it has trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from whyidle.advisor.advice.case import Counters

LIMIT_SECONDS = 180.0
WARM = 6
"""Steps that are not measured: connections are made, and workers begin together."""


@dataclass(frozen=True)
class Outcome:
    ledgers: Path
    batch_seconds: float
    """The time of a batch, by the job's own clock."""
    counters: Counters = field(default_factory=Counters)
    busy: float | None = None
    """Seconds in which a device executed something, by its own record."""


def batch_seconds(folder: Path, ranks: int, together: int = 1) -> float:
    """From when the ranks' batches were done: ns, one a line. ``together``: batches of a step of the optimizer."""
    took = []
    for rank in range(ranks):
        ends = [int(line) for line in (folder / f"ends-{rank}").read_text().split()]
        whole = (len(ends) - WARM) // together * together
        took.append((ends[-1] - ends[-1 - whole]) / whole / 1e9)
    return mean(took)
