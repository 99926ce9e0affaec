"""Scaling efficiency: how much of the throughput that more ranks should bring is there. Pure functions.

efficiency = (throughput / throughput of the first run) / (world size / world size of the first run). For example, 128
nodes that train 100 times as fast as one node have 78 %. Throughput is steps per second times samples per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...verdict.saved import Report
from .measures import rank_steps, seconds_per_step

WEAK, STRONG = "weak", "strong"
"""Weak scaling: a rank's batch is the same at each world size, so a step has more samples. Strong scaling: a step has
the same number of samples at each world size."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The throughput of one run, compared with the first run."""

    name: str
    world_size: int
    steps_per_second: float
    samples_per_step: float | None
    """The samples of all ranks together; None if not known."""
    speedup: float
    """Throughput / throughput of the first run."""
    efficiency: float
    assumed: str
    """How samples per step were determined, as a phrase."""


def scaling(
    named: Sequence[tuple[str, Report]], samples_per_step: Sequence[float] | None = None, kind: str | None = None
) -> list[Scaling]:
    """One entry for each run. The list is empty if all runs have the same world size.

    ``samples_per_step`` has one number for each run. Without it, ``kind`` (WEAK or STRONG) says how batches grow.
    Without both, the samples are those that data loaders counted, if they did so in all runs. Otherwise WEAK is
    assumed.
    """
    worlds = [max(1.0, report["world_size"]) for _, report in named]
    if len(set(worlds)) == 1:
        return []
    sizes: Sequence[float | None]
    if samples_per_step is not None:
        sizes, assumed = samples_per_step, "as given with --samples-per-step"
    elif kind is None and all(counted := [_counted(report) for _, report in named]):
        sizes, assumed = (
            counted,
            "samples as data loaders counted them. Samples that several ranks load are counted several times",
        )
    else:
        sizes = [None] * len(named)
        assumed = (
            "strong scaling: a step has the same number of samples at each world size"
            if kind == STRONG
            else "weak scaling: each rank has the same batch at each world size"
        )
    relative = [
        size if size is not None else world if kind != STRONG else 1.0
        for size, world in zip(sizes, worlds, strict=True)
    ]
    rates = [size / seconds_per_step(report) for size, (_, report) in zip(relative, named, strict=True)]
    return [
        Scaling(
            name,
            int(world),
            1 / seconds_per_step(report),
            size,
            rate / rates[0],
            rate / rates[0] / (world / worlds[0]),
            assumed,
        )
        for (name, report), world, size, rate in zip(named, worlds, sizes, rates, strict=True)
    ]


def _counted(report: Report) -> float | None:
    """The samples of a step of all ranks, as data loaders counted them; None if they did not. Missing ranks are assumed
    to have as many as the ranks in the report."""
    steps = rank_steps(report)
    samples = report.get("samples") or 0
    return samples / steps * max(report["world_size"], report["ranks"]) if samples else None
