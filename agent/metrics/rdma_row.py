"""The rows of the tables of RDMA counters."""

from __future__ import annotations

from typing import NamedTuple

from .metric import Metric

PORT = ("device", "port")
"""The label `port` is empty for counters of the whole device."""
PARTS = (*PORT, "traffic")
"""`traffic` is empty if the driver counts all traffic together. Otherwise it names the part. The parts add up."""

U64_MAX = (1 << 64) - 1
"""Drivers report this if there is no value, for example ionic_v1_stat_val()."""


class Row(NamedTuple):
    """The metric of one counter file."""

    metric: Metric
    extra: tuple[str, ...] = ()  # values of the labels after device and port
    times: int = 1  # raw value * times is in the metric's unit
    ceiling: int = U64_MAX  # the value at which the counter stops


class Family(NamedTuple):
    """The files of one metric, each with the values of the labels that follow device and port."""

    metric: Metric
    files: dict[str, tuple[str, ...]]


def same(name: str, unit: str, help_text: str, *files: str) -> Family:
    """One metric without further labels, and all file names that vendors use for it."""
    return kinds(name, unit, (), help_text, dict.fromkeys(files, ()))


def kinds(
    name: str,
    unit: str,
    labels: tuple[str, ...],
    help_text: str,
    files: dict[str, tuple[str, ...]],
    sparse: bool = False,
) -> Family:
    """One metric that labels divide into kinds or parts."""
    source = f"sys/class/infiniband/*/{{,ports/*/}}hw_counters/{{{','.join(files)}}}"
    full = f"whyidle_rdma_{name}_total"
    return Family(Metric(full, "counter", unit, (*PORT, *labels), help_text, source, sparse=sparse), files)


def errors(name: str, help_text: str, files: dict[str, str]) -> Family:
    """Errors by kind. Only kinds that have occurred are exported: there are dozens, and most never occur."""
    labels = {file: (kind,) for file, kind in files.items()}
    return kinds(
        name, "errors", ("error",), f"{help_text} A kind that has not occurred has no series.", labels, sparse=True
    )
