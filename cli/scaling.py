"""The tables of scaling efficiency: of runs, or of the attempts of one run, with different numbers of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ..advisor.compare.scaling import Scaling
from ..ledger.causes import FAMILIES
from .quantities import percent
from .tables import NONE, Table, times

LEAST_POINTS = 0.0005
"""Families with a smaller part in all runs are left out of the table."""


def scaling_tables(found: Sequence[Scaling]) -> list[Table]:
    """The efficiency of each run, and what took the rest of it."""
    header = ["", "world size", "steps/s", "samples a step", "speed-up", "efficiency", "per doubling"]
    rows = [
        [
            one.name,
            str(one.world_size),
            f"{one.steps_per_second:.3g}",
            f"{one.samples_per_step:,.6g}" if one.samples_per_step else NONE,
            times(one.speedup),
            percent(one.efficiency, 1),
            NONE if one.per_doubling is None else percent(one.per_doubling, 1),
        ]
        for one in found
    ]
    return [Table("scaling", header, rows, (0,)), _missing(found)]


def _missing(found: Sequence[Scaling]) -> Table:
    """A column for each run but the reference. The parts add up to what is missing."""
    others = [one for one in found if not one.is_reference]
    most = {family: max(abs(one.missing.get(family, 0.0)) for one in others) for family in FAMILIES}
    shown = sorted((family for family in FAMILIES if most[family] >= LEAST_POINTS), key=lambda name: -most[name])
    rows = [[family, *(_points(one.missing.get(family, 0.0)) for one in others)] for family in shown]
    rows.append(["all", *(_points(1 - one.efficiency) for one in others)])
    reference = next(one.name for one in found if one.is_reference)
    return Table("what took the rest", [f"compared with {reference}", *(one.name for one in others)], rows, (0,))


def _points(part: float) -> str:
    return percent(round(part, 4) + 0.0, 1)


def scaling_notes(found: Sequence[Scaling]) -> list[str]:
    """How the figures were obtained, and what took most, as sentences without their full stops."""
    said = [f"scaling assumes: {found[0].assumed}", f"what took the rest: {found[0].families}"]
    for one in found:
        lost = max(one.missing, key=lambda family: one.missing[family], default="")
        if lost and one.efficiency < 1 and one.missing[lost] > 0:
            said.append(
                f"{one.name} has {percent(one.efficiency, 1)} of the throughput that {one.world_size} ranks would have"
                f" at the rate of {one.reference}; {lost} took most of the rest: {_points(one.missing[lost])} of"
                f" {_points(1 - one.efficiency)}"
            )
    return said
