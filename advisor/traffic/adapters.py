"""Two kinds of traffic on the adapters of a node, from two answers of its agent: between GPUs, and to storage.

Pure functions, with the definitions of alerts/recording/traffic.py. An adapter is a network interface together with the
RDMA port on the same wire. Ranks in pods, and object stores, count as the rest of the adapter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ...agent.metrics import links, lustre, nfs, nic, rdma_port, tcp

COLLISION_SHARE = 0.2
"""Both kinds of traffic collide if each takes this share of an adapter's speed in one direction."""
_DIRECTIONS = ("receive", "transmit")
_LINK_BYTES = links.LINK_SUMS[0]
_RDMA_BYTES = dict(zip(_DIRECTIONS, (rdma_port.RECEIVE_BYTES, rdma_port.TRANSMIT_BYTES), strict=True))
_NFS_BYTES = dict(zip(_DIRECTIONS, nfs.BYTES[4:6], strict=True))
_LUSTRE_BYTES = {
    way: lustre.BYTES[f"{kind}_bytes"][1] for way, kind in zip(_DIRECTIONS, ("read", "write"), strict=True)
}
_FILE_SYSTEMS = ((nfs.INFO, "mount", _NFS_BYTES), (lustre.INFO, "filesystem", _LUSTRE_BYTES))

METRICS: tuple[str, ...] = tuple(
    metric.name
    for metric in (
        *(nic.BYTES, nic.SPEED, rdma_port.PORT_INFO, rdma_port.RATE, tcp.NAMESPACE_INFO, _LINK_BYTES),
        *(nfs.INFO, lustre.INFO, *_RDMA_BYTES.values(), *_NFS_BYTES.values(), *_LUSTRE_BYTES.values()),
    )
)
"""What the agent is asked for."""

Labels = Mapping[str, str]
Answer = Iterable[tuple[str, Labels, float]]
"""Samples of an agent: name, labels, value."""
_Wire = tuple[str, str]
"""Adapter and direction."""


class Use(NamedTuple):
    """What an adapter carries in one direction, in bytes a second."""

    adapter: str
    direction: str
    speed: float
    """0: not known."""
    gpu: float
    storage: float
    """Of mounts whose server is reached over this adapter."""
    rest: float

    @property
    def collides(self) -> bool:
        return bool(self.speed) and min(self.gpu, self.storage) >= COLLISION_SHARE * self.speed


class _Found:
    """The samples of one answer, by metric; of counters their growth per second."""

    def __init__(self, before: Answer, after: Answer, seconds: float):
        earlier = {(name, tuple(sorted(labels.items()))): value for name, labels, value in before}
        self._of: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for name, labels, value in after:
            then = earlier.get((name, tuple(sorted(labels.items()))))
            if not name.endswith("_total"):
                self._of[name].append((labels, value))
            elif then is not None and value >= then:
                self._of[name].append((labels, (value - then) / seconds))

    def __getitem__(self, name: str) -> list[tuple[Labels, float]]:
        return self._of[name]


def uses(before: Answer, after: Answer, seconds: float) -> list[Use]:
    """The adapters that carry any of both kinds of traffic, between two answers that are ``seconds`` apart."""
    found = _Found(before, after, seconds)
    ports = {
        (labels["device"], labels["port"]): labels.get("netdev") or f"{labels['device']}/{labels['port']}"
        for labels, _ in found[rdma_port.PORT_INFO.name]
    }
    speeds = _speeds(found, ports)
    stack = _sums((labels["device"], labels["direction"], value) for labels, value in found[nic.BYTES.name])
    rdma = _sums(
        (ports[port], way, value)
        for way, metric in _RDMA_BYTES.items()
        for labels, value in found[metric.name]
        if (port := (labels["device"], labels["port"])) in ports
    )
    of_mounts = {over: _of_mounts(found, over, carried) for over, carried in ((False, stack), (True, rdma))}
    of_ranks = _of_ranks(found)
    for wire, carried in rdma.items():
        of_ranks[wire] = of_ranks.get(wire, 0.0) + max(0.0, carried - of_mounts[True].get(wire, 0.0))
    known = []
    for wire in sorted({*of_ranks, *of_mounts[False], *of_mounts[True]}):
        gpu, storage = of_ranks.get(wire, 0.0), sum(mounts.get(wire, 0.0) for mounts in of_mounts.values())
        rest = max(0.0, stack.get(wire, 0.0) + rdma.get(wire, 0.0) - gpu - storage)
        if gpu or storage:
            known.append(Use(*wire, speeds.get(wire[0], 0.0), gpu, storage, rest))
    return known


def _speeds(found: _Found, ports: Mapping[tuple[str, str], str]) -> dict[str, float]:
    speeds = {labels["device"]: value for labels, value in found[nic.SPEED.name]}
    for labels, value in found[rdma_port.RATE.name]:
        if adapter := ports.get((labels["device"], labels["port"])):
            speeds[adapter] = max(value, speeds.get(adapter, 0.0))
    return speeds


def _of_mounts(found: _Found, rdma: bool, carried: Mapping[_Wire, float]) -> dict[_Wire, float]:
    """What file systems move, at most what the adapter carries: Lustre's client also counts what its cache serves."""
    moved = _sums(_of_clients(found, rdma))
    return {wire: min(value, carried.get(wire, value)) for wire, value in moved.items()}


def _of_clients(found: _Found, rdma: bool) -> Iterator[tuple[str, str, float]]:
    for info, key, counters in _FILE_SYSTEMS:
        adapters = {
            labels[key]: labels["adapter"]
            for labels, _ in found[info.name]
            if labels.get("adapter") and labels.get("protocol", "").startswith(("rdma", "o2ib")) == rdma
        }
        for way, metric in counters.items():
            for labels, value in found[metric.name]:
                if labels[key] in adapters:
                    yield adapters[labels[key]], way, value


def _of_ranks(found: _Found) -> dict[_Wire, float]:
    """What the connections of ranks in the node's own network namespace carry."""
    here = {
        (labels.get("owner", ""), labels.get("run", ""))
        for labels, _ in found[tcp.NAMESPACE_INFO.name]
        if labels.get("namespace") == "host"
    }
    return _sums(
        (labels["link"], labels["direction"], value)
        for labels, value in found[_LINK_BYTES.name]
        if labels.get("kind") == "tcp" and (labels.get("owner", ""), labels.get("run", "")) in here
    )


def _sums(parts: Iterable[tuple[str, str, float]]) -> dict[_Wire, float]:
    sums: dict[_Wire, float] = {}
    for adapter, direction, value in parts:
        sums[adapter, direction] = sums.get((adapter, direction), 0.0) + value
    return sums
