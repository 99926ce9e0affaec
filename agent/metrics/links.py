"""The metrics of the links that carry the transfers of a run: sums over its ranks on one node, and what is possible."""

from __future__ import annotations

from .metric import Metric
from .ranks import NS
from .runs import RUN_PLACE

LINK = (*RUN_PLACE, "kind", "link")
_WHICH = (
    "The label kind is tcp for a network interface, rdma for a port of an adapter (mlx5_0/1), and node for a way "
    "inside the node, such as loopback or shared memory. After 32 links of a run on a node, the others are summed "
    "under other."
)
BITS = 8

LINK_SUMS: tuple[Metric, ...] = (
    Metric(
        "whyidle_run_link_bytes_total",
        "counter",
        "bytes",
        (*LINK, "direction"),
        "Bytes that the TCP connections of the ranks of a run on this node carried for their communication, by link "
        f"and direction. whyidle_rdma_receive_bytes_total and its like have those of RDMA ports. {_WHICH}",
        "<bytes of links>",
        (("receive",), ("transmit",)),
        sparse=True,
    ),
    Metric(
        "whyidle_run_link_wait_bytes_total",
        "counter",
        "bytes",
        LINK,
        "Bytes that the connections of the ranks of a run on this node carried over a link while looks found the rank "
        "waiting in a collective, in the direction that carried more. Divided by whyidle_run_link_wait_seconds_total, "
        "they are the rate that one rank achieves, and multiplied by whyidle_run_link_ranks that of the node.",
        "<bytes of links in waits>",
        sparse=True,
    ),
    Metric(
        "whyidle_run_link_wait_seconds_total",
        "counter",
        "seconds",
        LINK,
        "The seconds in which whyidle_run_link_wait_bytes_total was measured, summed over the ranks of the run on this "
        "node.",
        "<seconds of links in waits>",
        sparse=True,
        per=NS,
    ),
    Metric(
        "whyidle_run_link_segments_total",
        "counter",
        "segments",
        LINK,
        "TCP segments that the connections of the ranks of a run on this node sent for their communication, by link.",
        "<segments of links>",
        sparse=True,
    ),
    Metric(
        "whyidle_run_link_resent_segments_total",
        "counter",
        "segments",
        LINK,
        "The part of whyidle_run_link_segments_total that was sent again, because a segment was lost or late.",
        "<segments of links, sent again>",
        sparse=True,
    ),
)
"""In the order of mounts_links.of_link."""
LINK_RANKS = Metric(
    "whyidle_run_link_ranks",
    "gauge",
    "ranks",
    LINK,
    "Live ranks of a run on this node that waited in collectives while the link carried bytes for them; of an RDMA "
    "port, those that have queue pairs at it. They share the link.",
    "<ranks on links>",
)
LINK_SPEED = Metric(
    "whyidle_run_link_speed_bytes_per_second",
    "gauge",
    "bytes_per_second",
    LINK,
    "The speed of the hardware of a link in one direction, as the live ranks of a run on this node see it; the lowest "
    "of all ranks. Also for links that are up and carry nothing.",
    "<speeds of links>",
    per=BITS,
)
LINK_LIMIT = Metric(
    "whyidle_run_link_limit_bytes_per_second",
    "gauge",
    "bytes_per_second",
    (*LINK, "limit_by"),
    "The rate to which a shaper limits a link, and which one (tbf, htb, police, …). The lowest of all live ranks of a "
    "run on this node. Absent if no limit is known.",
    "<limits of links>",
    per=BITS,
)
METRICS: tuple[Metric, ...] = (*LINK_SUMS, LINK_RANKS, LINK_SPEED, LINK_LIMIT)
