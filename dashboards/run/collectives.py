"""Waits in collectives: in which groups, for which ranks, and how much the links carried."""

from __future__ import annotations

from .. import traffic
from .. import variables as v
from ..colours import BLUE, GREY, SKY
from ..vocabulary import Column, Panel, Section, Target, line, now, over_range, query, table, trend
from ..vocabulary import section as _section

LATE = 0.005
"""Waits and late ranks are shown if they take more GPUs than this on average. Less is noise of the clock."""

LINKS = 32
"""The most rows of the table of links."""


def section() -> Section:
    return _section(
        "Network, straggler or pipeline?",
        line(8, _by_group(), _late_by(), _bandwidth()),
        line(6, _links()),
        line(7, traffic.collide(v.MEMBERS, "on the node of this run where the share is highest, of all runs there")),
    )


def _by_group() -> Panel:
    waits = f"sum by (group, part) (rate(whyidle_group_wait_seconds_total{{{v.RUN}}}[$__rate_interval]))"
    bubble = f"sum(rate(whyidle_pipeline_bubble_seconds_total{{{v.RUN}}}[$__rate_interval]))"
    return trend(
        "Waits by group",
        """Which process group the ranks wait in, and for what: the transfer (network), a late rank (straggler),
        another stage (pipeline), or not known (unsplit). GPU-seconds per second of all ranks. The group “unknown”
        contains calls whose process group whyidle does not know. The dashed line is the least that the schedule of a
        pipeline costs, (stages − 1) / microbatches × the quickest stage's time.""",
        query(f"{waits} > {LATE}", "{{group}}: {{part}}"),
        query(f"{bubble} > 0", "bubble of the schedule"),
        unit="count:GPUs",
        width=8,
        colours={"bubble of the schedule": GREY},
        dotted=["bubble of the schedule"],
        nothing="Nobody waited in a collective",
    )


def _late_by() -> Panel:
    late = f"run_rank_family:whyidle_late:rate${{window}}{{{v.RUN}}}"
    return trend(
        "Late ranks, and what made them late",
        """GPU-seconds per second that a rank made the others wait, by what made it late. Compute, which counts as
        straggler, means a slow GPU or an uneven batch. Only the eight worst ranks are shown. A slow link does not
        make a rank late.""",
        query(
            f"{late} and on (rank, family) topk(8, {over_range(late.replace('${window}', '5m'))} > {LATE})",
            "rank {{rank}}: {{family}}",
        ),
        unit="count:GPUs",
        by_family=True,
        width=8,
        nothing="Nobody made others wait",
    )


def _bandwidth() -> Panel:
    return trend(
        "Bus bandwidth against the link",
        """The group in whose transfers the run waits most: what its collectives moved per rank, as nccl-tests counts it
        (busbw), and its share of a node's links. All groups with one name share them. A group within a node has the
        NVLinks of one GPU, if there are any. “While it waits” counts only the time in which ranks wait in transfers. If
        it is near the link, the network is the limit. If it is far below its best, the transfers have become slower. If
        it is far below the link, with much network time, look for congestion, small messages or latency. If groups are
        not known, all ranks count as one group. Averaged over five minutes.""",
        query(_of_group("whyidle_collective_busbw_bytes:rate5m"), "bus bandwidth {{group}}"),
        query(_of_group("whyidle_transfer_busbw_bytes:rate5m"), "while it waits {{group}}"),
        query(_of_group("whyidle_transfer_busbw_bytes:best"), "its best while it waits {{group}}"),
        query(_of_group("whyidle_link_bytes:limit"), "link {{group}}"),
        unit="Bps",
        width=8,
        colours={"/^bus bandwidth/": BLUE, "/^while it waits/": SKY, "/^its best/": SKY, "/^link/": GREY},
        dotted=["/^link/", "/^its best/"],
    )


def _links() -> Panel:
    transfers, carried, possible, again = (
        f"run_link:whyidle_link_{what}{{{v.RUN}}}"
        for what in ("transfer_bytes:rate5m", "bytes:rate5m", "bytes:limit", "resent:ratio5m")
    )
    by = f"{v.BY_RUN}, kind, link"
    share = f"{transfers} / on ({by}) min by ({by}) ({possible})"
    return table(
        "Transfers, by link: achieved and possible",
        """The links of the run by name, on all of its nodes: network interfaces (tcp), ports of RDMA adapters (rdma),
        and ways within a node. “Achieved” is the rate of a link while ranks wait in collectives: of all ranks of a
        node together, as they share the link. “Possible” is its speed, or the rate of the shaper that
        limits it, on the slowest node. Near 100 %, the link is the limit: move the transfers to a faster link that
        carries nothing. Far below, look for lost segments, latency or small messages. A port of an RDMA adapter
        has what anybody moves over it. All rates are in one direction, over the last five minutes.""",
        _listed(f"8 * {transfers}"),
        _listed(f"8 * {possible}"),
        _listed(share),
        _listed(f"8 * {carried}"),
        _listed(again),
        columns=[
            Column("link", "Link"),
            Column("kind", "Kind", width=90),
            Column("A", "Achieved", "bps", width=130),
            Column("B", "Possible", "bps", width=130),
            Column("limit_by", "Limited by", width=110),
            Column("C", "Achieved of possible", "percentunit", cell="gauge", most=1, decimals=0, width=200),
            Column("D", "Carried on average", "bps", width=160),
            Column("E", "Segments sent again", "percentunit", width=160),
        ],
        sort="Carried on average",
        nothing="No link of the run is known",
    )


def _listed(expr: str) -> Target:
    return now(f"topk({LINKS}, {expr})")


def _of_group(record: str) -> str:
    """The record of the group in whose transfers the run waits most; that of the run if the group is not known."""
    waiting = f"run_group:whyidle_transfer_waits:rate5m{{{v.RUN}}}"
    known = f"(run_group:whyidle_collective_busbw_bytes:rate5m{{{v.RUN}}} and on ({v.BY_RUN}, group) {waiting})"
    return (
        f"run_group:{record}{{{v.RUN}}} and on ({v.BY_RUN}, group) {waiting} "
        f"or run:{record}{{{v.RUN}}} unless on ({v.BY_RUN}) {known}"
    )
