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

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

TIMEOUT_SECONDS = 1.0
LOOK_SECONDS = 2.0
"""Between two looks at a counter."""
_MOST_PROCESSES = 512
PROC = Path("/proc")


def of_node(run: Run, ledgers: Iterable[Ledger], agent: str = "") -> Counters:
    """Of a run whose ranks live here; nothing is known of others. ``agent``: the address of this node's, if asked."""
    live = [one for one in ledgers if run_of(one) == run and one.alive and one.strings["boot"] == own_clock().boot]
    if not live:
        return Counters()
    ranks = max(one.world_size for one in live)
    mtu, paused = _network(agent) if agent and ranks > len(live) else ({}, None)
    return Counters(
        cpus=float(len(os.sched_getaffinity(0))),
        bytes_per_read=bytes_per_read([one.visible_pid for one in live if one.visible_pid]),
        mtu=mtu,
        paused=paused,
    )


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


def _network(agent: str) -> tuple[dict[str, int], float | None]:
    """MTU by interface, and for which share of a moment pause frames held up the sending. Empty without an agent."""
    try:
        first, begun = _samples(agent), time.monotonic()
        paused = _paused(first)
        if paused is None:
            return _mtus(first), None
        time.sleep(LOOK_SECONDS)
        again = _paused(_samples(agent))
        return _mtus(first), None if again is None else max(0.0, again - paused) / (time.monotonic() - begun)
    except (exposition.NoAgent, ValueError, ModuleNotFoundError):
        return {}, None


def _samples(agent: str) -> list[Sample]:
    names = (metric.name for metric in (nic.PAUSE_SECONDS, nic.INFO, nic.SPEED, nic.MTU))
    return exposition.ask(agent, *names, timeout_seconds=TIMEOUT_SECONDS)


def _paused(samples: list[Sample]) -> float | None:
    found = [
        one.value for one in samples if one.name == nic.PAUSE_SECONDS.name and one.labels.get("direction") == "receive"
    ]
    return max(found, default=None)


def _mtus(samples: list[Sample]) -> dict[str, int]:
    """Of physical interfaces with a link; none where there is RDMA, which has an MTU of its own."""
    physical = {
        one.labels["device"]: one.labels.get("rdma", "")
        for one in samples
        if one.name == nic.INFO.name and one.labels.get("kind") == "physical"
    }
    if any(physical.values()):
        return {}
    linked = {one.labels["device"] for one in samples if one.name == nic.SPEED.name}
    return {
        one.labels["device"]: int(one.value)
        for one in samples
        if one.name == nic.MTU.name and one.labels["device"] in linked & physical.keys()
    }
