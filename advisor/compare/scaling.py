"""Scaling efficiency: how much of the throughput that more ranks should bring is there, and what took the rest.

    efficiency = (throughput / throughput of the reference) / (world size / world size of the reference)

For example, 128 nodes that train 100 times as fast as one node have 78 %. Throughput is samples per second. The
reference is the run with the fewest ranks.

What is missing, in families: a sample costs ``world size × seconds of a step / samples of a step`` device-seconds, and
these are the sum of the families. So the differences of the families from the reference, divided by what a sample costs
in the larger run, add up to 1 − efficiency. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log2

from ...ledger.causes import FAMILIES
from ...verdict.saved import Report
from .measures import check_steps, family_values, rank_steps, seconds_per_step

WEAK, STRONG = "weak", "strong"
"""Weak scaling: a rank's batch is the same at each world size, so a step has more samples. Strong scaling: a step has
the same number of samples at each world size."""
_GROWTH = {
    STRONG: "strong scaling: a step has the same number of samples at each world size",
    WEAK: "weak scaling: each rank has the same batch at each world size",
}
LOOKED_THROUGH = "waits for late ranks count under what made these late"
AS_MEASURED = "waits for late ranks count as straggler"


@dataclass(frozen=True, slots=True)
class Scaling:
    """The throughput of one run, compared with the run that has the fewest ranks."""

    name: str
    world_size: int
    steps_per_second: float
    samples_per_step: float | None
    """The samples of all ranks together; None if not known."""
    speedup: float
    """Throughput / throughput of the reference."""
    efficiency: float
    assumed: str
    """How samples per step were determined, as a phrase."""
    reference: str
    """The name of the reference."""
    per_doubling: float | None = None
    """The efficiency of one doubling of the ranks, since the run with the next smaller world size. None if there is no
    smaller one."""
    missing: dict[str, float] = field(default_factory=dict)
    """By family, its part of 1 − efficiency. Less than 0: a sample costs less of it than in the reference."""
    families: str = ""
    """How waits for late ranks count in `missing`, as a phrase."""

    @property
    def is_reference(self) -> bool:
        return self.name == self.reference


def scaling(
    named: Sequence[tuple[str, Report]], samples_per_step: Sequence[float] | None = None, kind: str | None = None
) -> list[Scaling]:
    """One entry for each run. The list is empty if all runs have the same world size.

    ``samples_per_step`` has one number for each run. Without it, ``kind`` (WEAK or STRONG) says how batches grow.
    Without both, the samples are those that data loaders counted, if they did so in all runs. Otherwise WEAK is
    assumed, and steps are compared. Raises NoComparison.
    """
    for name, report in named:
        check_steps(name, report)
    worlds = [max(1.0, report["world_size"]) for _, report in named]
    if len(set(worlds)) == 1:
        return []
    sizes, assumed = _sizes(named, samples_per_step, kind)
    relative = [
        size if size is not None else world if kind != STRONG else 1.0
        for size, world in zip(sizes, worlds, strict=True)
    ]
    rates = [size / seconds_per_step(report) for size, (_, report) in zip(relative, named, strict=True)]
    first = worlds.index(min(worlds))
    of_devices = [rate / world for rate, world in zip(rates, worlds, strict=True)]
    explained = all(report.get("explained") for _, report in named)
    shares = [_shares(report, explained) for _, report in named]
    return [
        Scaling(
            name,
            int(world),
            1 / seconds_per_step(report),
            sizes[at],
            rates[at] / rates[first],
            efficiency := of_devices[at] / of_devices[first],
            assumed,
            named[first][0],
            _per_doubling(worlds, of_devices, at),
            missing(shares[at], shares[first], efficiency) if at != first else {},
            LOOKED_THROUGH if explained else AS_MEASURED,
        )
        for at, ((name, report), world) in enumerate(zip(named, worlds, strict=True))
    ]


def missing(shares: Mapping[str, float], of_reference: Mapping[str, float], efficiency: float) -> dict[str, float]:
    """By family, its part of 1 − efficiency, from the shares of the time of both runs, which sum to 1."""
    found = {family: shares.get(family, 0.0) - efficiency * of_reference.get(family, 0.0) for family in FAMILIES}
    return {family: part for family, part in found.items() if part}


def _shares(report: Report, explained: bool) -> dict[str, float]:
    if explained:
        seconds: dict[str, float] = report["explained"]
    else:
        seconds = {family: value.value for family, value in family_values(report).items()}
    whole = sum(seconds.values())
    return {family: spent / whole for family, spent in seconds.items()} if whole > 0 else {}


def _per_doubling(worlds: Sequence[float], of_devices: Sequence[float], at: int) -> float | None:
    smaller = [place for place, world in enumerate(worlds) if world < worlds[at]]
    if not smaller:
        return None
    before = max(smaller, key=lambda place: worlds[place])
    return (of_devices[at] / of_devices[before]) ** (1 / log2(worlds[at] / worlds[before]))


def _sizes(
    named: Sequence[tuple[str, Report]], given: Sequence[float] | None, kind: str | None
) -> tuple[Sequence[float | None], str]:
    """The samples of a step of each run, and how they were determined."""
    if given is not None:
        return given, "as given with --samples-per-step"
    counted = [_counted(report) for _, report in named]
    if kind is None and all(counted):
        said = "samples as data loaders counted them. Samples that several ranks load are counted several times"
        return counted, said
    nothing = [None] * len(named)
    if kind is not None:
        return nothing, _GROWTH[kind]
    unknown = ", ".join(name for (name, _), size in zip(named, counted, strict=True) if not size)
    return nothing, f"{_GROWTH[WEAK]}. The samples of {unknown} are not known, so steps are compared"


def _counted(report: Report) -> float | None:
    """The samples of a step of all ranks, as data loaders counted them; None if they did not. Missing ranks are assumed
    to have as many as the ranks in the report."""
    steps = rank_steps(report)
    samples = report.get("samples") or 0
    return samples / steps * max(report["world_size"], report["ranks"]) if samples else None
