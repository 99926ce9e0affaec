"""What advice asks of this node: CPUs, how much a read brings, the MTU of adapters, pause frames."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..advisor.advice.case import Counters
from ..agent.metrics import nic
from ..ledger.clock import own_clock
from ..ledger.directory import Run, run_of
from ..ledger.reader import Ledger
from . import exposition
from .exposition import Reading

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

NAMES: tuple[str, ...] = tuple(metric.name for metric in (nic.PAUSE_SECONDS, nic.INFO, nic.SPEED, nic.MTU))
"""The metrics to ask this node's agent for, where :func:`beyond_this_node` says so."""
LOOK_SECONDS = 2.0
"""Between two looks at a counter."""
_MOST_PROCESSES = 512
PROC = Path("/proc")


def beyond_this_node(run: Run, ledgers: Iterable[Ledger]) -> bool:
    """Whether ranks of a run live here, and others live elsewhere: then this node's adapters matter."""
    live = _live(run, ledgers)
    return bool(live) and max(one.world_size for one in live) > len(live)


def of_node(run: Run, ledgers: Iterable[Ledger], reading: Reading | None = None) -> Counters:
    """What is known of a run whose ranks live here; nothing is known of others.

    ``reading``: what this node's agent says of NAMES, if it was asked. It is asked once more, LOOK_SECONDS later, where
    adapters count pause frames.
    """
    live = _live(run, ledgers)
    if not live:
        return Counters()
    mtu, paused = (_mtus(reading.samples), _paused_share(reading)) if reading is not None else ({}, None)
    return Counters(
        cpus=float(len(os.sched_getaffinity(0))),
        bytes_per_read=bytes_per_read([one.visible_pid for one in live if one.visible_pid]),
        mtu=mtu,
        paused=paused,
    )


def _live(run: Run, ledgers: Iterable[Ledger]) -> list[Ledger]:
    return [one for one in ledgers if run_of(one) == run and one.alive and one.strings["boot"] == own_clock().boot]


def bytes_per_read(pids: list[int]) -> float | None:
    """Of the children of these processes, since each began: a loop that has workers reads what they hand over."""
    read = calls = 0
    for each in [child for pid in pids for child in _children(pid)][:_MOST_PROCESSES]:
        try:
            fields = dict(line.split(": ") for line in (PROC / str(each) / "io").read_text().splitlines())
            read, calls = read + int(fields["rchar"]), calls + int(fields["syscr"])
        except (OSError, ValueError, KeyError):
            continue
    return read / calls if calls else None


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
    except (OSError, ValueError):
        return []


def _paused_share(reading: Reading) -> float | None:
    """For which share of the time pause frames held up the sending, on the adapter and priority where most."""
    before = _paused(reading.samples)
    if not before:
        return None
    time.sleep(max(0.0, reading.at + LOOK_SECONDS - time.monotonic()))
    later = exposition.read(reading.address, nic.PAUSE_SECONDS.name)
    after = _paused(later.samples)
    grown = [after[one] - before[one] for one in before.keys() & after.keys()]
    return max(0.0, *grown) / (later.at - reading.at) if grown else None


def _paused(samples: Iterable[Sample]) -> dict[tuple[str, str], float]:
    """(adapter, priority) -> seconds so far."""
    return {
        (one.labels.get("device", ""), one.labels.get("priority", "")): one.value
        for one in samples
        if one.name == nic.PAUSE_SECONDS.name and one.labels.get("direction") == "receive"
    }


def _mtus(samples: list[Sample]) -> dict[str, int]:
    """Of physical interfaces with a link; none where there is RDMA, which has an MTU of its own."""
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
