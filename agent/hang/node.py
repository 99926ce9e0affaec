"""What the counters and the kernel's log of this node say around the time of a hang: GPUs, XIDs, errors of links."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ...linux.kernel_log import records, xid_errors
from ...linux.unreadable import Unreadable
from ..metrics import gpu, nic, rdma_port
from ..metrics.metric import Metric

_ERRORS: tuple[Metric, ...] = (
    gpu.XIDS,
    gpu.LOST,
    nic.ERRORS,
    nic.FAULTS,
    nic.CARRIER_CHANGES,
    rdma_port.LINK_DOWNED,
    rdma_port.PORT_ERRORS,
    rdma_port.SYMBOL_ERRORS,
)
"""Counters that should not grow. They start with the agent, the driver or the machine."""
_NAMES = frozenset(metric.name for metric in (*_ERRORS, gpu.INFO, gpu.BUSY, gpu.OBSERVED, gpu.POWER))
_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\} (\S+)(?: |$)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
MOST_ERRORS = 64
MOST_XIDS = 16
Labels = tuple[tuple[str, str], ...]


class Gpu(NamedTuple):
    """One GPU of this node. None: not known."""

    gpu: str
    uuid: str
    busy: float | None
    """The share of the time between two looks in which it ran kernels."""
    watts: float | None


class CountedError(NamedTuple):
    """A counter of errors that is not 0."""

    name: str
    labels: dict[str, str]
    total: float
    grown: float
    """Between two looks."""


class Xid(NamedTuple):
    """An error that the driver of a GPU has reported."""

    pci: str
    """The address of the GPU."""
    xid: int
    seconds_ago: float


@dataclass(frozen=True, slots=True)
class Node:
    gpus: tuple[Gpu, ...] = ()
    errors: tuple[CountedError, ...] = ()


@dataclass(slots=True)
class Look:
    """The samples of one exposition that this module uses."""

    values: dict[tuple[str, Labels], float] = field(default_factory=dict)


def look(exposition: str) -> Look:
    """Other lines, and lines that do not fit, are left out."""
    return Look(dict(_samples(exposition)))


def between(first: Look, second: Look) -> Node:
    """What changed between two looks. The counters of a single look have not grown."""
    errors = [
        CountedError(name, dict(labels), value, max(0.0, value - first.values.get((name, labels), value)))
        for (name, labels), value in second.values.items()
        if value and name in {metric.name for metric in _ERRORS}
    ]
    errors.sort(key=lambda error: -error.grown)
    return Node(tuple(_gpus(first, second)), tuple(errors[:MOST_ERRORS]))


def xids(log: str) -> list[Xid]:
    """The newest of each GPU and number that the kernel's log still has, the newest first. ``log``: its path. Raises
    LookupError with a sentence.

    The clock of the log is not adjusted: after weeks, it may differ by seconds.
    """
    now = time.monotonic_ns()
    try:
        found = xid_errors(records(log))
    except Unreadable as error:
        raise LookupError("the kernel's log cannot be read: run this on the node, as root") from error
    newest = {(one.pci, one.xid): one for one in found}.values()  # they are in order
    last = sorted(newest, key=lambda one: -one.at_ns)[:MOST_XIDS]
    return [Xid(one.pci, one.xid, max(0.0, (now - one.at_ns) / 1e9)) for one in last]


def _gpus(first: Look, second: Look) -> Iterator[Gpu]:
    power = {dict(labels)["uuid"]: value for (name, labels), value in second.values.items() if name == gpu.POWER.name}
    for name, labels in second.values:
        if name == gpu.INFO.name:
            at = dict(labels)
            yield Gpu(at["gpu"], at["uuid"], _busy(first, second, at["uuid"]), power.get(at["uuid"]))


def _busy(first: Look, second: Look, uuid: str) -> float | None:
    for (name, labels), observed in second.values.items():
        if name != gpu.OBSERVED.name or dict(labels)["uuid"] != uuid:
            continue
        seen = observed - first.values.get((name, labels), observed)
        key = (gpu.BUSY.name, labels)
        if seen > 0 and key in first.values and key in second.values:
            return min(1.0, max(0.0, (second.values[key] - first.values[key]) / seen))
    return None


def _samples(exposition: str) -> Iterator[tuple[tuple[str, Labels], float]]:
    for line in exposition.splitlines():
        found = _SAMPLE.match(line) if line.partition("{")[0] in _NAMES else None
        if found is None:
            continue
        try:
            yield (found[1], tuple(sorted(_LABEL.findall(found[2])))), float(found[3])
        except ValueError:
            continue
