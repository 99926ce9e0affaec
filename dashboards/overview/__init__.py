"""The dashboard Overview: who has idle GPUs, why, and where to look next, on one screen without scrolling."""

from __future__ import annotations

from ...alerts.recording.names import PRODUCTIVE_ON_CPUS
from ...alerts.recording.shares import PRODUCTIVE
from .. import variables as v
from ..marks import ALERTS, CHECKPOINTS_OF_RUNS, DEPLOYMENTS, DRAINS, restarts, starts
from ..vocabulary import (
    GOOD,
    MONEY,
    Dashboard,
    Panel,
    Section,
    dashboard,
    line,
    now,
    query,
    section,
    stat,
    steps,
)
from .parts import IDLE, lost_hours
from .sentence import sentence
from .tables import bills, firing, runs, verdicts

HANGS = "WhyidleCollectiveHung|WhyidleCollectiveStuck|WhyidleComputeStuck"
FIRING = f'alertstate="firing", {v.OWNERS}'


def build() -> Dashboard:
    return dashboard(
        "whyidle-overview",
        "whyidle / Overview",
        "Which GPUs are idle, why, and what to look at next. Click the name of a run to see its ranks.",
        variables=[v.data_source(), v.cluster(), v.owners(), v.runs(), v.window()],
        annotations=[starts(v.RUNS), restarts(v.RUNS), CHECKPOINTS_OF_RUNS, DRAINS, DEPLOYMENTS, ALERTS],
        sections=[_screen()],
    )


def _screen() -> Section:
    return section(
        "",
        line(2, sentence()),
        line(3, _idle(), _allocated(), _goodput(), _hung(), _pages(), _today()),
        line(7, runs()),
        line(7, *bills(), verdicts(), firing()),
    )


def _idle() -> Panel:
    return stat(
        "Idle GPUs now",
        """How many GPUs of the chosen runs do not compute: device-seconds per second of all families except
        compute, and GPUs that runs were given and do not use.""",
        query(f"sum(run_family:whyidle_device_seconds:rate${{window}}{{{v.RUNS}, {IDLE}}})"),
        unit="locale",
        decimals=1,
        graph=True,
        nothing="No live rank",
    )


def _allocated() -> Panel:
    return stat(
        "Allocated and idle",
        """GPUs that a pod or a process has and that did nothing for an hour, with whyidle's hooks or without: the
        alert WhyidleGpuAllocatedIdle fires for these.""",
        now(f'count(ALERTS{{alertname="WhyidleGpuAllocatedIdle", {FIRING}}})'),
        unit="short",
        decimals=0,
        thresholds=steps(1),
        nothing="none",
    )


def _goodput() -> Panel:
    computed = f"run_cause:whyidle_device_seconds:increase{{{v.RUNS}, {PRODUCTIVE}}}[${{__range}}]%s"
    on_cpus = f"sum(sum_over_time({PRODUCTIVE_ON_CPUS}{{{v.RUNS}}}[${{__range}}]%s)) or vector(0)"
    whole = f"run_family:whyidle_billed_seconds:increase{{{v.RUNS}}}[${{__range}}]%s"
    ratio = f"(sum(sum_over_time({computed})) - ({on_cpus})) / sum(sum_over_time({whole}))"
    return stat(
        "Goodput",
        """Share of the chosen runs' device time that was compute or rollouts for new steps, in the time range and in
        the same time a week before. Steps that are repeated after a restart, evaluations, and ranks on the CPU beside
        unused GPUs do not count.""",
        now(ratio.replace("%s", ""), "now"),
        now(ratio.replace("%s", " offset 1w"), "a week ago"),
        unit="percentunit",
        thresholds=GOOD,
        decimals=0,
        show="value_and_name",
    )


def _hung() -> Panel:
    missing = f"run_rank_family:whyidle_missing:seconds{{{v.RUNS}}} > {v.SETTINGS.alerts.hang_seconds}"
    alerts = f'ALERTS{{alertname=~"{HANGS}", {FIRING}, {v.any_of("run")}}}'
    return stat(
        "Hung runs",
        """Runs in which live ranks wait in a collective that another rank does not enter, or in which a rank computes
        without end. The row of the run names the rank.""",
        now(f"count(group by ({v.BY_RUN}) ({alerts}) or group by ({v.BY_RUN}) ({missing}))"),
        unit="short",
        decimals=0,
        thresholds=steps(1),
        nothing="none",
    )


def _pages() -> Panel:
    return stat(
        "Pages",
        "Critical alerts of whyidle that fire now: a run does not progress, or hardware that ranks use is broken.",
        now(f'count(ALERTS{{alertname=~"Whyidle.+", severity="critical", {FIRING}}})'),
        unit="short",
        decimals=0,
        thresholds=steps(1),
        nothing="none",
    )


def _today() -> Panel:
    hours = f"sum({lost_hours(v.BY_RUN)})"
    return stat(
        "Lost today",
        """What the chosen runs lost since midnight: device-hours that were not compute or that no rank used, and their
        cost at the price of a GPU-hour in the settings. Without a price only hours are shown.""",
        now(f"{v.SETTINGS.gpu_hour_price} * {hours} > 0", "money"),
        now(hours, "GPU-hours"),
        unit=MONEY,
        units={"GPU-hours": "count:GPU-h"},
        since="now/d",
        show="value",
    )
