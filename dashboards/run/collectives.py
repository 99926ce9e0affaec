"""Network, straggler or pipeline? The waits in collectives, split, and who was late by what."""

from __future__ import annotations

from .. import variables as v
from ..colours import BLUE, CAUSE_SHADES, GREY, SKY
from ..vocabulary import Panel, Section, bars, line, now, over_range, query, trend
from ..vocabulary import section as _section
from .parts import causes

LATE = 0.005
"""GPUs that a rank keeps waiting: less is noise of the clock."""
NOBODY = "Nobody made others wait"


def section() -> Section:
    return _section(
        "Network, straggler or pipeline?",
        line(8, _split(), _by_group()),
        line(8, _late_by(), _culprits()),
        line(8, _turns(), _bubble()),
        line(8, _bandwidth(), _bytes()),
        line(7, _missing(), _calls()),
    )


def _split() -> Panel:
    return causes(
        "Waits in collectives",
        """network: every rank is in it, and the transfer takes that long. straggler: a rank has not entered yet.
        pipeline: another stage has not sent or received yet. collective: these could not be told apart, or the wait is
        still open. collective_queue: the rank's own communication threads get no CPU. Shares of all ranks' time.""",
        ("network", "straggler", "pipeline", "collective", "collective_queue"),
    )


def _by_group() -> Panel:
    waits = f"rate(whyidle_group_wait_seconds_total{{{v.RUN}}}[$__rate_interval])"
    return trend(
        "Waits by group",
        """Which process group the ranks wait in, and for what: network, a late rank (straggler), another stage
        (pipeline), or not known (unsplit). GPU-seconds per second of all ranks. The group unknown has calls whose
        process group whyidle does not know.""",
        query(f"sum by (group, part) ({waits}) > {LATE}", "{{group}}: {{part}}"),
        unit="count:GPUs",
        legend="table",
        nothing="Nobody waited in a collective",
    )


def _turns() -> Panel:
    steps = f"sum by (rank) (rate(whyidle_late_steps_total{{{v.RUN}}}[%s]%s))"
    return trend(
        "Who arrives last",
        """Steps per second in which each rank was the last to arrive, of the eight ranks that were most often. One line
        far above the others is a slow rank; lines at one height are ranks that take turns, as with uneven batches.""",
        query(
            f"{steps % ('${window}', '')} and on (rank) topk(8, {steps % ('$__range', ' @ end()')})",
            "rank {{rank}}",
        ),
        unit="ops",
        nothing="No rank arrived after the others",
    )


def _bubble() -> Panel:
    waits = f'sum(run_cause:whyidle_share:ratio${{window}}{{{v.RUN}, cause="pipeline"}})'
    bubble = f"sum(rate(whyidle_pipeline_bubble_seconds_total{{{v.RUN}}}[${{window}}]))"
    whole = f"sum(run:whyidle_device_seconds:rate${{window}}{{{v.RUN}}})"
    return trend(
        "Pipeline bubble",
        """Waits between pipeline stages as a share of all ranks' time, and the bubble: what the schedule itself costs,
        at least, which is (stages − 1) / microbatches × the quickest stage's time. Waits far above the bubble: a stage
        or a link is slow. Close to it: use more microbatches or another schedule.""",
        query(waits, "waits between stages"),
        query(f"{bubble} / {whole}", "bubble of the schedule"),
        unit="percentunit",
        colours={"waits between stages": CAUSE_SHADES["pipeline"], "bubble of the schedule": GREY},
        dotted=["bubble of the schedule"],
        nothing="No rank waited for another stage",
    )


def _calls() -> Panel:
    calls = f"rate(whyidle_group_calls_total{{{v.RUN}}}[$__rate_interval])"
    return trend(
        "Collectives by group",
        """Collectives per second that ranks waited for, by process group, all ranks together. Many calls with little
        time each pay for latency: fuse them.""",
        query(f"sum by (group) ({calls})", "{{group}}"),
        unit="ops",
        nothing="No collective of a known group",
    )


def _late_by() -> Panel:
    late = f"run_rank_family:whyidle_late:rate${{window}}{{{v.RUN}}}"
    return trend(
        "Late ranks, and by what",
        """GPU-seconds per second that a rank made the others wait, by what made it late: storage, cpu or host;
        compute, which stands under straggler, is a slow GPU or an uneven batch. The eight worst.""",
        query(
            f"{late} and on (rank, family) topk(8, {over_range(late.replace('${window}', '5m'))} > {LATE})",
            "rank {{rank}}: {{family}}",
        ),
        unit="count:GPUs",
        by_family=True,
        nothing=NOBODY,
    )


def _culprits() -> Panel:
    return bars(
        "GPUs that each rank kept waiting, on average",
        """The time range's mean of GPU-seconds per second, of the eight ranks that others waited for most, with what
        made them late; straggler is compute itself.""",
        now(
            f"topk(8, {over_range(f'run_rank_family:whyidle_late:rate5m{{{v.RUN}}}')} > {LATE})",
            "rank {{rank}}, late by {{family}}",
        ),
        unit="count:GPUs",
        width=12,
        decimals=2,
        by_family=True,
        nothing=NOBODY,
    )


def _bandwidth() -> Panel:
    return trend(
        "Bus bandwidth against the link",
        """What the collectives moved, as nccl-tests counts it (busbw), per rank over wall time, and the rate of a
        rank's link. Near the link's rate: the network is the limit. Far below, with much network time: congestion,
        small messages or latency. A run on one node has no link. Over five minutes. While it waits: of the time in
        which ranks wait in transfers alone; far below its best, the transfers have become slower.""",
        query(f"run:whyidle_collective_busbw_bytes:rate5m{{{v.RUN}}}", "bus bandwidth"),
        query(f"run:whyidle_transfer_busbw_bytes:rate5m{{{v.RUN}}}", "while it waits"),
        query(f"run:whyidle_transfer_busbw_bytes:best{{{v.RUN}}}", "its best while it waits"),
        query(f"run:whyidle_link_bytes:limit{{{v.RUN}}}", "link"),
        unit="Bps",
        colours={"bus bandwidth": BLUE, "while it waits": SKY, "its best while it waits": SKY, "link": GREY},
        dotted=["link", "its best while it waits"],
    )


def _bytes() -> Panel:
    return trend(
        "Bytes handed to collectives",
        "By operation, of all ranks together. It follows the model and the batch, so a change here is one of the code.",
        query(f"sum by (op) (rate(whyidle_collective_bytes_total{{{v.RUN}}}[$__rate_interval]))", "{{op}}"),
        unit="Bps",
        stacked=True,
    )


def _missing() -> Panel:
    return trend(
        "Missing from a collective",
        """For how long others have waited for this rank to enter, and the family that keeps it. A line that climbs
        without end is a hang, and the rank is the place to look.""",
        query(f"run_rank_family:whyidle_missing:seconds{{{v.RUN}}}", "rank {{rank}}: {{family}}"),
        unit="s",
        by_family=True,
        nothing="Nobody was missing",
    )
