"""Finds out once what an agent can see on this node, for `whyidle doctor`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from .collector import COLLECTORS, Collector
from .fence import Fences, Result, State
from .metrics import BY_COLLECTOR
from .metrics.ranks import RANK
from .reading import Blind, ReadError

PAUSE_SECONDS = 1.0
"""Pause between the two rounds. Values that are integrated over time are absent in the first round."""
DEVICE_LABELS: dict[str, tuple[str, ...]] = {
    "ranks": RANK,
    "gpu": ("gpu",),
    "nic": ("device",),
    "rdma": ("device",),
    "qdisc": ("device",),
    "disk": ("device",),
    "nfs": ("mount",),
    "lustre": ("mount",),
    "fuse": ("device",),
    "filesystem": ("mount",),
    "process": RANK,
    "placement": RANK,
}
"""Collector -> the labels that identify its devices."""

ABSENT_REMEDIES: dict[str, str] = {
    "gpu": "if the node has GPUs, install NVIDIA's driver; in a container, set NVIDIA_VISIBLE_DEVICES=all and "
    "NVIDIA_DRIVER_CAPABILITIES=utility, and in Kubernetes runtimeClassName: nvidia",
    "rdma": "if the node has such adapters, load their driver; in a container, mount the node's /sys and pass it as "
    "--path.sysfs",
    "pressure": "boot a kernel 4.20 or later with psi=1",
}
"""Collector -> what to do if it found nothing, but should have. Other collectors are absent if nothing uses them."""


@dataclass(slots=True)
class Finding:
    """The result of one collector."""

    name: str
    reads: str
    state: State
    detail: str
    seconds: float
    series: int = 0
    devices: list[str] = field(default_factory=list)
    blind: list[Blind] = field(default_factory=list)
    errors: list[ReadError] = field(default_factory=list)


def examine(collectors: dict[str, Collector], deadline_seconds: float) -> list[Finding]:
    """Asks all collectors twice. Takes about a second, plus the deadline for each collector that hangs."""
    fences = Fences(collectors, deadline_seconds)
    first = fences.round()
    time.sleep(PAUSE_SECONDS)
    second = fences.round()
    fences.close()
    reads = {entry.name: entry.reads for entry in COLLECTORS}
    return [_finding(name, reads[name], first[name], result) for name, result in second.items()]


def _finding(name: str, reads: str, first: Result, result: Result) -> Finding:
    if result.state == "hanging":
        result = first
    finding = Finding(name, reads, result.state, result.detail, result.seconds)
    if result.reading:
        samples = result.reading.samples
        finding.series = sum(len(series) for series in samples.values())
        finding.devices = _devices(name, result)
        finding.blind = list(dict.fromkeys(result.reading.blind_spots))
        finding.errors = list(dict.fromkeys(result.reading.errors))
    return finding


def _devices(name: str, result: Result) -> list[str]:
    assert result.reading
    wanted = DEVICE_LABELS.get(name, ())
    found: set[tuple[str, ...]] = set()
    for metric in BY_COLLECTOR[name] if wanted else ():
        if set(wanted) <= set(metric.labels):
            at = [metric.labels.index(label) for label in wanted]
            found |= {tuple(labels[i] for i in at) for labels in result.reading.samples.get(metric, ())}
    return ["/".join(device) for device in sorted(found) if device[-1]]


def ledger_directory_problem(directory: str) -> tuple[str, str] | None:
    """What is wrong with the ledger directory and what to do, or None."""
    if not os.path.isdir(directory):
        return (
            f"{directory} does not exist: no rank has written a ledger on this node",
            "start the training with `whyidle run -- ...` or call whyidle.attach() in it; ranks and agent must share "
            "the directory (WHYIDLE_DIR)",
        )
    if not os.access(directory, os.R_OK | os.X_OK):
        return f"{directory} cannot be read", "run the agent as the directory's owner or group, or as root"
    return None
