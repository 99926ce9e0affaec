"""Network or straggler? The waits in collectives, split, and who was late by what."""

from __future__ import annotations

from .. import variables as v
from ..colours import BLUE, GREY
from ..vocabulary import Panel, Section, bars, line, now, over_range, query, trend
from ..vocabulary import section as _section
from .parts import causes

LATE = 0.005
"""GPUs that a rank keeps waiting: less is noise of the clock."""
NOBODY = "Nobody made others wait"


def section() -> Section:
    return _section(
        "Network or straggler?",
        line(8, _split(), _late_by()),
        line(8, _culprits(), _bandwidth()),
        line(8, _bytes(), _missing()),
    )


def _split() -> Panel:
    return causes(
        "Waits in collectives",
        """network: every rank is in it, and the transfer takes that long. straggler: a rank has not entered yet.
        pipeline: another stage has not sent or received yet. collective: these could not be told apart, or the wait is
        still open. collective_queue: the rank's own communication threads get no CPU. Shares of all ranks' time.""",
        ("network", "straggler", "pipeline", "collective", "collective_queue"),
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
        small messages or latency. A run on one node has no link. Over five minutes.""",
        query(f"run:whyidle_collective_busbw_bytes:rate5m{{{v.RUN}}}", "bus bandwidth"),
        query(f"run:whyidle_link_bytes:limit{{{v.RUN}}}", "link"),
        unit="Bps",
        colours={"bus bandwidth": BLUE, "link": GREY},
        dotted=["link"],
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
