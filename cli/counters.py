"""The counters of this node that advice uses: CPUs, bytes per read, the MTU of adapters, free space."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..advisor.advice.case import Counters
from ..agent.metrics import nic
from ..agent.metrics.cpu import FREQUENCY_LIMIT
from ..ledger.clock import own_clock
from ..ledger.directory import Run, run_of
from ..ledger.reader import Ledger
from . import rooms
from .exposition import Reading
from .quantities import percent

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

NAMES: tuple[str, ...] = tuple(metric.name for metric in (nic.INFO, nic.SPEED, nic.MTU))
"""The metrics to ask this node's agent for, if :func:`beyond_this_node` is true."""
OF_LAUNCHES: tuple[str, ...] = (FREQUENCY_LIMIT.name,)
"""The metrics to ask it for if the host launches work for an accelerator too late."""
_MOST_PROCESSES = 512
PROC = Path("/proc")


def beyond_this_node(run: Run, ledgers: Iterable[Ledger]) -> bool:
    """Whether some ranks of a run are live on this node and others are elsewhere, so that this node's adapters
    matter."""
    live = live_here(run, ledgers)
    return bool(live) and max(one.world_size for one in live) > len(live)


def of_node(run: Run, ledgers: Sequence[Ledger], reading: Reading | None = None) -> Counters:
    """The counters for a run on this node. Those of processes are known only while ranks are live.

    ``reading``: what this node's agent answered about NAMES, if it was asked.
    """
    here = [one for one in ledgers if run_of(one) == run and one.strings["boot"] == own_clock().boot]
    live = [one for one in here if one.alive]
    if not live:
        return Counters(rooms=rooms.of_ledgers(here))
    return Counters(
        cpus=float(len(os.sched_getaffinity(0))),
        bytes_per_read=bytes_per_read([one.visible_pid for one in live if one.visible_pid]),
        mtu=_mtus(reading.samples) if reading is not None else {},
        rooms=rooms.of_ledgers(here),
    )


def live_here(run: Run, ledgers: Iterable[Ledger]) -> list[Ledger]:
    """The ledgers of the live ranks of a run on this node."""
    return [one for one in ledgers if run_of(one) == run and one.alive and one.strings["boot"] == own_clock().boot]


def bytes_per_read(pids: list[int]) -> float | None:
    """The mean bytes per read of the children of these processes, since each child started. None if there is no read.

    Only children count, because a loop with workers itself reads only what they send to it.
    """
    read = calls = 0
    for each in [child for pid in pids for child in _children(pid)][:_MOST_PROCESSES]:
        try:
            fields = dict(line.split(": ") for line in (PROC / str(each) / "io").read_text().splitlines())
            read, calls = read + int(fields["rchar"]), calls + int(fields["syscr"])
        except (OSError, ValueError, KeyError):
            continue
    return read / calls if calls else None


def slow_cpus(reading: Reading, below: float) -> list[str]:
    """A sentence for each governor that holds CPUs below this share of their frequency."""
    return [
        f"CPUs of this node may reach {percent(sample.value)} of their frequency (governor {sample.labels['governor']})"
        for sample in reading.samples
        if sample.name == FREQUENCY_LIMIT.name and sample.value < below
    ]


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
    except (OSError, ValueError):
        return []


def _mtus(samples: list[Sample]) -> dict[str, int]:
    """The MTU of each physical interface with a link. Empty if there is RDMA, which has a separate MTU."""
    physical = {
        one.labels.get("device", ""): one.labels.get("rdma", "")
        for one in samples
        if one.name == nic.INFO.name and one.labels.get("kind") == "physical"
    }
    if any(physical.values()):
        return {}
    linked = {one.labels.get("device", "") for one in samples if one.name == nic.SPEED.name}
    return {
        one.labels["device"]: int(one.value)
        for one in samples
        if one.name == nic.MTU.name and one.labels.get("device", "") in linked & physical.keys() and 0 < one.value < 1e9
    }
