"""Scaling efficiency: what of the throughput that more ranks should bring a run has. Pure functions.

efficiency = (throughput / throughput of the first) / (world size / world size of the first). 128 nodes that train 100
times as fast as one have 78 %. Throughput is steps per second times samples per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...verdict.saved import Report
from .measures import rank_steps, seconds_per_step

WEAK, STRONG = "weak", "strong"
"""Each rank has the same batch whatever the world size, so that a step has more samples; or all steps have as many."""


@dataclass(frozen=True, slots=True)
class Scaling:
    name: str
    world_size: int
    steps_per_second: float
    samples_per_step: float | None
    """Of all ranks; None where it is not known."""
    speedup: float
    """Of the throughput, against the first run."""
    efficiency: float
    assumed: str


def scaling(
    named: Sequence[tuple[str, Report]], samples_per_step: Sequence[float] | None = None, kind: str | None = None
) -> list[Scaling]:
    """One entry for each run; none where all have the same world size.

    ``samples_per_step`` are as many numbers as runs. Without them, ``kind`` (WEAK or STRONG) says how batches grow;
    without that too, what the data loaders of the ranks counted, if all did; else WEAK.
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
    """Samples of a step of all ranks, where the loaders counted them; of ranks not here, as many as of those here."""
    steps = rank_steps(report)
    samples = report.get("samples") or 0
    return samples / steps * max(report["world_size"], report["ranks"]) if samples else None
