"""The links that this node has: interfaces with an address, and active RDMA ports."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from ...ledger.links import SHAPERS
from ...linux import interfaces, shaping, traffic_control
from ...linux.interfaces import Address, Link
from ...linux.qdisc import Qdisc
from ...linux.unreadable import Unreadable
from . import rdma

_ON_HARDWARE = ("", "bond", "team", "vlan", "macvlan", "macvtap", "ipvlan", "ipoib")
"""Kinds of interfaces that are hardware, or stand on it. The end of a veth pair is not known to."""
_ON_ANOTHER = ("vlan", "macvlan", "macvtap", "ipvlan")
"""What these send is sent by the interface on which they stand, within its limit."""
_OF_MEMBERS = ("bond", "bridge", "team")
"""The same, if they have only one member that leaves the node."""
_DEEP = 4
"""Such as a VLAN on a bridge on a bond, with its hardware."""
_LOOPBACK = "lo"
_MOST = 32

Key = tuple[str, str]
"""Kind and name of a link, as in its string in the ledger."""
NODE = ("node", _LOOPBACK)


class Found(NamedTuple):
    """One link of this node."""

    key: Key
    address: str  # with the length of the prefix; empty if it has none
    network: str  # the same for links that reach each other; empty if it is not known
    up: bool
    speed: int
    limit: int
    limit_by: int
    mtu: int
    moved_bytes: int | None
    hardware: bool


class Inventory:
    """What the node has, as of the last `look`."""

    def __init__(self) -> None:
        self.links: dict[Key, Found] = {}
        self.ports: list[rdma.Port] = []
        self.own: set[str] = set()
        """The addresses of this network namespace that other nodes can reach."""
        self._names: dict[int, str] = {}  # index -> name
        self._routes: dict[tuple[str, str], Key | None] = {}

    def look(self) -> None:
        """Raises Unreadable, and changes nothing then."""
        addresses = interfaces.addresses()
        try:
            qdiscs, _ = traffic_control.qdiscs()
        except Unreadable:
            qdiscs = []
        found: dict[Key, Found] = {}
        names: dict[int, str] = {}
        by_index: dict[int, list[Address]] = {}
        for address in addresses:
            by_index.setdefault(address.interface, []).append(address)
        links: dict[int, Link] = {}
        for index in list(by_index)[:_MOST]:
            with suppress(Unreadable):  # it was removed meanwhile
                links[index] = interfaces.link(index)
        hardware = any(_on_hardware(link) for link in links.values() if link.name != _LOOPBACK)
        for index, link in links.items():
            own, names[index] = by_index[index], link.name
            usable = sorted((one for one in own if one.everywhere), key=lambda one: one.family)
            if link.name == _LOOPBACK or not usable:
                continue
            limit = _limit_of(link, qdiscs, hardware)
            found["tcp", link.name] = Found(
                ("tcp", link.name),
                usable[0].text,
                str(ipaddress.ip_network(usable[0].text, strict=False)),
                link.up,
                interfaces.speed(link.name),
                limit.bits_per_second if limit else 0,
                SHAPERS.index(limit.by) if limit else 0,
                link.mtu,
                link.moved_bytes,
                _on_hardware(link),
            )
        ports = rdma.ports()
        for port in ports:
            if port.active:
                key = ("rdma", port.name)
                beside = found.get(("tcp", port.interface))
                network = port.subnet or (beside.network if beside else "")
                found[key] = Found(
                    key,
                    beside.address if beside else "",
                    network and f"rdma {network}",
                    True,
                    port.bits_per_second,
                    0,
                    0,
                    0,
                    rdma.moved_bytes(port),
                    True,
                )
        self.links, self.ports, self._names, self._routes = found, ports, names, {}
        self.own = {one.address for one in addresses if one.everywhere}

    def refresh(self, key: Key) -> int | None:
        """The bytes that anybody has moved over a link until now; None if it is gone, or if that is not known."""
        kind, name = key
        try:
            if kind == "tcp":
                index = next((index for index, known in self._names.items() if known == name), None)
                return None if index is None else interfaces.link(index).moved_bytes
        except Unreadable:
            return None
        port = next((port for port in self.ports if port.name == name), None)
        return rdma.moved_bytes(port) if kind == "rdma" and port else None

    def key_of(self, local: str, remote: str) -> Key | None:
        """The link that carries a connection; None if that is not known."""
        ends = local, remote
        if ends not in self._routes:
            self._routes[ends] = self._route(local, remote)
        return self._routes[ends]

    def _route(self, local: str, remote: str) -> Key | None:
        try:
            index, inside = interfaces.interface_to(local, remote)
        except (Unreadable, OSError, ValueError):
            return None
        name = self._names.get(index, "")
        if inside or name == _LOOPBACK:
            return NODE
        return ("tcp", name) if name else None

    def best(self, carrying: Collection[Key], count: int) -> list[Key]:
        """The links to tell: those that carry first, then the fastest ones that are up and stand on hardware.

        In a namespace without hardware, such as a pod's, all others count.
        """
        others = [link for link in self.links.values() if link.key not in carrying and link.up]
        if any(link.hardware for link in self.links.values()):
            others = [link for link in others if link.hardware]
        others.sort(key=lambda link: -link.speed)
        return [*carrying, *(link.key for link in others)][:count]


def _on_hardware(link: Link) -> bool:
    if link.kind != "bridge":
        return link.kind in _ON_HARDWARE
    return any(member.kind in _ON_HARDWARE for member in _members(link))


def _members(link: Link) -> list[Link]:
    try:
        return interfaces.members(link.index)
    except Unreadable:
        return []


def _limit_of(link: Link, qdiscs: Sequence[Qdisc], hardware: bool) -> shaping.Limit | None:
    """The lowest limit of an interface, and of those that send what it sends. ``hardware``: whether this namespace has
    any; otherwise everything leaves it by a veth."""
    limits: list[shaping.Limit | None] = []
    below: Link | None = link
    for _ in range(_DEEP):
        if below is None:
            break
        with suppress(Unreadable):
            limits.append(shaping.limit_of(below.index, qdiscs))
        below = _below(below, hardware)
    return min(filter(None, limits), default=None)


def _below(link: Link, hardware: bool) -> Link | None:
    """The only interface that sends what this one sends; None if there are several, or if none is known. The other
    members of a bridge lead to containers of the node."""
    if link.kind in _ON_ANOTHER:
        with suppress(Unreadable):
            return interfaces.link(link.lower) if link.lower else None
        return None
    members = _members(link) if link.kind in _OF_MEMBERS else []
    outside = [member for member in members if member.up and (member.kind in _ON_HARDWARE or not hardware)]
    return outside[0] if len(outside) == 1 else None
