"""What the tables of an RDMA device's counters consist of."""

from __future__ import annotations

from typing import NamedTuple

from .metric import Metric

PORT = ("device", "port")
"""The port is empty for what a driver tells of the whole device."""
PARTS = (*PORT, "traffic")
"""`traffic` is empty where the driver counts all traffic in one, else it says which part this is. Parts add up."""

U64_MAX = (1 << 64) - 1
"""What drivers hand on where there is no value, as ionic_v1_stat_val() does."""


class Row(NamedTuple):
    """What one file of counters means."""

    metric: Metric
    extra: tuple[str, ...] = ()  # the labels after device and port
    times: int = 1  # a raw value times this is in the metric's unit
    ceiling: int = U64_MAX  # where the counter stops


class Family(NamedTuple):
    """The files that hold one metric, each with its values of the labels after device and port."""

    metric: Metric
    files: dict[str, tuple[str, ...]]


def same(name: str, unit: str, help_text: str, *files: str) -> Family:
    """One fact, under all the names that vendors have for it."""
    return kinds(name, unit, (), help_text, dict.fromkeys(files, ()))


def kinds(
    name: str,
    unit: str,
    labels: tuple[str, ...],
    help_text: str,
    files: dict[str, tuple[str, ...]],
    sparse: bool = False,
) -> Family:
    """Facts of several kinds, or in parts, told apart by labels."""
    source = f"sys/class/infiniband/*/{{,ports/*/}}hw_counters/{{{','.join(files)}}}"
    full = f"whyidle_rdma_{name}_total"
    return Family(Metric(full, "counter", unit, (*PORT, *labels), help_text, source, sparse=sparse), files)


def errors(name: str, help_text: str, files: dict[str, str]) -> Family:
    """Errors by kind. There are dozens, and most never occur: only those that have are exported."""
    labels = {file: (kind,) for file, kind in files.items()}
    return kinds(
        name, "errors", ("error",), f"{help_text} A kind that has not occurred has no series.", labels, sparse=True
    )
