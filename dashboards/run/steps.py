"""Steps: how long they take, and how many."""

from __future__ import annotations

from .. import variables as v
from ..colours import BLUE, ORANGE
from ..vocabulary import Panel, Section, heat, line, query, rank_idle, trend, worst
from ..vocabulary import section as _section


def section() -> Section:
    return _section("Steps", line(8, _percentiles(), _rate(), _fed()), line(8, _by_rank()))


def _percentiles() -> Panel:
    return trend(
        "Step time",
        """Wall time from one optimizer step's end to the next, over all ranks: median and 99th percentile. The two
        apart: some steps meet what others do not, such as a checkpoint or a cold read.""",
        query(f"run:whyidle_step_seconds:p50_5m{{{v.RUN}}}", "median"),
        query(f"run:whyidle_step_seconds:p99_5m{{{v.RUN}}}", "99th percentile"),
        unit="s",
        width=8,
        colours={"median": BLUE, "99th percentile": ORANGE},
    )


def _rate() -> Panel:
    return trend(
        "Steps per second",
        "Optimizer steps of rank 0, as all ranks step together; repeated ones included. Zero: the run stands still.",
        query(f'max(rate(whyidle_steps_total{{{v.RUN}, rank="0"}}[$__rate_interval]))', "steps"),
        unit="ops",
        width=8,
        colours={"steps": BLUE},
    )


def _fed() -> Panel:
    return trend(
        "Samples and batches per second",
        "What reached the loops of all ranks, samples where their number is known.",
        query(f"sum(rate(whyidle_samples_total{{{v.RUN}}}[$__rate_interval]))", "samples"),
        query(f"sum(rate(whyidle_batches_total{{{v.RUN}}}[$__rate_interval]))", "batches"),
        unit="ops",
        width=8,
        colours={"samples": BLUE, "batches": ORANGE},
    )


def _by_rank() -> Panel:
    matchers = f"{v.RUN}, {v.RANKS}"
    by = "owner, run, rank"
    mean = (
        f"rate(whyidle_step_seconds_sum{{{matchers}}}[$__rate_interval])"
        f" / rate(whyidle_step_seconds_count{{{matchers}}}[$__rate_interval])"
    )
    return heat(
        "Mean step time of each rank",
        """The brighter, the longer. Ranks that step together have the same; a row that differs does not wait for the
        others. Of the ranks that compute least.""",
        query(worst(f"({mean})", rank_idle(matchers, by), by), "rank {{rank}}"),
        unit="s",
        most=None,
    )
