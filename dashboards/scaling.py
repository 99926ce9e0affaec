"""How well runs scale, on the dashboard Fleet: the throughput of each GPU, compared with that in a reference run.

A run with the efficiency e has the share 1 - e less of the reference's throughput per GPU. The part of it that a family
has taken is ``its share of the run's time - e * its share of the reference's time``: these parts add up to 1 - e.
"""

from __future__ import annotations

from ..alerts.config import DEFAULT
from ..alerts.recording.names import RUN_RANKS, charged, rank_samples, steps
from . import variables as v
from .vocabulary import FAMILY, FAMILY_WIDTH, Column, Panel, Template, now, over_range, table, to_run

COMPARED = f"{v.CLUSTER}, {v.any_of('run', 'scaled')}"
REFERENCE = f"{v.CLUSTER}, {v.only('run', 'reference')}"
BY_FAMILY = f"{v.BY_RUN}, family"


def variables() -> tuple[Template, Template]:
    """The reference, and the runs that are compared with it."""
    of_runs = f"label_values({RUN_RANKS}{{{v.CLUSTER}}}, run)"
    return (
        v.listed("reference", "Scaling: reference run", of_runs, multi=False),
        v.listed("scaled", "Scaling: runs", of_runs, multi=True),
    )


def efficiencies() -> Panel:
    ranks, efficiency = _of_run(RUN_RANKS), _efficiency()
    first = f"topk($worst, {ranks})"
    shown = f"and on ({v.BY_RUN}) {first}"
    doublings = f"log2({ranks} / scalar({_of_reference(RUN_RANKS)}))"
    most = f"topk by ({v.BY_RUN}) (1, {_missing(efficiency)} > 0)"
    return table(
        "Scaling efficiency",
        "How much of the reference run's throughput per GPU each run has, for a training that runs on different "
        "numbers of GPUs. Choose a small run as the reference and the runs to compare above. Throughput is samples per "
        "second, or steps per second if a run or the reference has no count of samples. The last columns say which "
        "family took most of the rest.",
        now(first),
        now(f"{_of_run(rank_samples(DEFAULT.window))} {shown}"),
        now(f"{efficiency} {shown}"),
        now(f"{efficiency} ^ on ({v.BY_RUN}) (1 / ({doublings} > 0)) {shown}"),
        now(f"{most} and on ({v.BY_RUN}) ({efficiency} < 1) {shown}"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("A", "GPUs", "short", decimals=0, width=90),
            Column("B", "Samples/s of a GPU", "short", width=150),
            Column("C", "Efficiency", "percentunit", cell="gauge", most=1, decimals=1, width=180),
            Column("D", "Per doubling", "percentunit", decimals=1, width=120),
            Column("family", "Took most of the rest", mappings=FAMILY, cell="color-background", width=FAMILY_WIDTH),
            Column("E", "Its part", "percentunit", decimals=1, width=90),
        ],
        sort="GPUs",
        nothing="choose a reference run",
    )


def _of_run(series: str, by: str = v.BY_RUN, matchers: str = COMPARED) -> str:
    return over_range(f"avg by ({by}) ({series}{{{matchers}}})")


def _of_reference(series: str, by: str = "") -> str:
    return _of_run(series, by, REFERENCE)


def _efficiency() -> str:
    """By run. The comparison drops runs without a count, and all if the reference has none."""
    pace = (rank_samples(DEFAULT.window), steps(DEFAULT.window))
    counted, stepped = (f"({_of_run(each)} / scalar({_of_reference(each)}) >= 0)" for each in pace)
    return f"({counted} or on ({v.BY_RUN}) {stepped})"


def _missing(efficiency: str) -> str:
    """By run and family."""
    shares = _of_run(charged(DEFAULT.window), BY_FAMILY)
    of_reference = _of_reference(charged(DEFAULT.window), "family")
    expected = f"(0 * {shares} + on ({v.BY_RUN}) group_left () {efficiency}) * on (family) group_left () {of_reference}"
    return f"({shares} - on ({BY_FAMILY}) ({expected}) or on ({BY_FAMILY}) {shares})"
