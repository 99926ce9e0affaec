"""Metrics summed over the ranks of a run on one node. The recording rules use them, to avoid reading every rank."""

from __future__ import annotations

from ...ledger.causes import CAUSE_FAMILY, COLLECTIVE_OPS, FAMILIES
from .metric import Metric
from .ranks import NS, RUN

RUN_PLACE = (*RUN, "node")
_GROWS = (
    "It does not fall when a rank ends, restarts or is forgotten. After an interruption that is longer than "
    "`--ledger.retention` it begins again from 0."
)

METRICS: tuple[Metric, ...] = (
    Metric(
        "whyidle_run_device_seconds_total",
        "counter",
        "seconds",
        (*RUN_PLACE, "cause", "family"),
        f"Device-seconds of all ranks of a run on this node, by cause. {_GROWS} A cause that took nothing has no "
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
)
