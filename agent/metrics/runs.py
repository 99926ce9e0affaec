"""Metrics summed over the ranks of a run on one node. The recording rules use them, to avoid reading every rank."""

from __future__ import annotations

from ...ledger.causes import CAUSE_FAMILY, CHECKPOINT_KINDS, COLLECTIVE_OPS, FAMILIES
from .metric import Metric
from .ranks import NS, RUN

RUN_PLACE = (*RUN, "node")
_GROWS = (
    "It does not fall when a rank ends, restarts or is forgotten. After an interruption that is longer than "
    "`--ledger.retention` it begins again from 0."
)

LIVE_RANKS = Metric(
    "whyidle_run_ranks",
    "gauge",
    "ranks",
    RUN_PLACE,
    "Live ranks of a run on this node. 0 while the agent still shows ranks that have ended, and none lives.",
    "<live ranks>",
)
SUMS: tuple[Metric, ...] = (
    Metric(
        "whyidle_run_device_seconds_total",
        "counter",
        "seconds",
        (*RUN_PLACE, "cause", "family"),
        f"Device-seconds of all ranks of a run on this node, by cause. {_GROWS} A cause that took no time has no "
        "series.",
        "cause_ns",
        tuple(CAUSE_FAMILY.items()),
        sparse=True,
        per=NS,
    ),
    Metric(
        "whyidle_run_waited_for_seconds_total",
        "counter",
        "seconds",
        (*RUN_PLACE, "family"),
        "whyidle_waited_for_seconds_total of all ranks of a run on this node. A family that was not waited for has no "
        "series.",
        "waited_for_ns",
        tuple((family,) for family in FAMILIES),
        sparse=True,
        per=NS,
    ),
    Metric(
        "whyidle_run_collective_bytes_total",
        "counter",
        "bytes",
        (*RUN_PLACE, "op"),
        "Bytes handed to collectives by all ranks of a run on this node, by operation.",
        "collective_bytes",
        tuple((op,) for op in COLLECTIVE_OPS),
        sparse=True,
    ),
    Metric(
        "whyidle_run_steps_total",
        "counter",
        "steps",
        RUN_PLACE,
        "whyidle_steps_total of all ranks of a run on this node. Every rank counts the steps of the run.",
        "steps",
    ),
    Metric(
        "whyidle_run_checkpoints_total",
        "counter",
        "checkpoints",
        (*RUN_PLACE, "kind"),
        "whyidle_checkpoints_total of all ranks of a run on this node.",
        "checkpoints",
        tuple((kind,) for kind in CHECKPOINT_KINDS),
    ),
    Metric(
        "whyidle_run_hook_faults_total",
        "counter",
        "faults",
        RUN_PLACE,
        "whyidle_hook_faults_total of all ranks of a run on this node.",
        "faults",
    ),
)
"""The sums of counters of ledgers."""
GROUP_SUMS: tuple[Metric, ...] = (
    Metric(
        "whyidle_run_group_transfer_seconds_total",
        "counter",
        "seconds",
        (*RUN_PLACE, "group"),
        "Waits in the transfers of one process group (part network of whyidle_group_wait_seconds_total) of all ranks "
        f"of a run on this node. {_GROWS}",
        "<group transfers>",
        per=NS,
    ),
    Metric(
        "whyidle_run_group_bus_bytes_total",
        "counter",
        "bytes",
        (*RUN_PLACE, "group"),
        "What the ranks of a run on this node send over their links for the collectives of one process group: bytes "
        "times the factor of nccl-tests for the operation and the size of the group. Divided by "
        "whyidle_run_group_transfer_seconds_total, it is the bus bandwidth of a rank while it waits. "
        "A group whose bytes are not known has no series.",
        "<group bus bytes>",
        sparse=True,
    ),
)
"""The sums by process group, in the order of group_sums.of_run."""
GROUPS_ACROSS = Metric(
    "whyidle_run_groups_across_nodes",
    "gauge",
    "groups",
    (*RUN_PLACE, "group"),
    "How many process groups with this name have members both on this node and elsewhere. They share the links of the "
    "node. 0 if all members are on this node. Absent if the members are not known.",
    "<groups across nodes>",
)
METRICS: tuple[Metric, ...] = (LIVE_RANKS, *SUMS, *GROUP_SUMS, GROUPS_ACROSS)
