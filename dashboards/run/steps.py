"""Steps: how long they take, and how many there are per second."""

from __future__ import annotations

from .. import variables as v
from ..colours import BLUE, ORANGE
from ..vocabulary import Panel, Section, line, query, trend
from ..vocabulary import section as _section


def section() -> Section:
    return _section("Steps", line(7, _time(), _pace()))


def _time() -> Panel:
    return trend(
        "Step time",
        """Wall time from one optimizer step's end to the next, over all ranks: median and 99th percentile. If the two
        differ much, some steps contain something that others do not, such as a checkpoint or a cold read.""",
        query(f"run:whyidle_step_seconds:p50_5m{{{v.RUN}}}", "median"),
        query(f"run:whyidle_step_seconds:p99_5m{{{v.RUN}}}", "99th percentile"),
        unit="s",
        colours={"median": BLUE, "99th percentile": ORANGE},
    )


def _pace() -> Panel:
    return trend(
        "Steps, batches and samples per second",
        """Optimizer steps of the run over five minutes, repeated ones included; batches and samples of all ranks,
        samples only if their number is known. Zero means that the run does not progress.""",
        query(f"run:whyidle_steps:rate5m{{{v.RUN}}}", "steps"),
        query(f"sum(rate(whyidle_batches_total{{{v.RUN}}}[$__rate_interval]))", "batches"),
        query(f"sum(rate(whyidle_samples_total{{{v.RUN}}}[$__rate_interval]))", "samples"),
        unit="ops",
        legend="table",
    )
