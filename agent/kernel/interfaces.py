"""Identifies network interfaces, and selects those to report.

A Kubernetes node has one end of a veth pair per pod, and bridges, tunnels and dummies. Only interfaces that stand on
hardware are reported: those with a device, the bonds, bridges, VLANs and tunnels on top of them, the loopback, and
those with the default route. In a namespace without hardware, such as a pod's, all interfaces are reported.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Set
from dataclasses import dataclass

from ...linux.netdev import default_routes
from ..files import Roots, Unreadable, names, read, word

LOOPBACK = "lo"
PHYSICAL, VIRTUAL_FUNCTION = "physical", "vf"
MOST = 64
"""The maximum number of interfaces that are reported. SR-IOV can create hundreds."""
MOST_WITHOUT_HARDWARE = 16
REFRESH_SECONDS = 30.0
"""How long the identity of interfaces is reused, while none is added or removed."""
_DEPTH = 8
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    kind: str  # physical, vf, loopback, bond, bridge, vlan, vxlan, ..., tun, or virtual
    driver: str = ""
    master: str = ""
    pci: str = ""  # address of its PCI function, if it has one
    bus: str = ""  # the name of its device in sysfs: a PCI address, virtio2, ...; empty without a device
    rdma: str = ""
    standing: bool = False  # whether it is on hardware, directly or through other interfaces
    may_change: bool = False  # whether its lower interfaces can change, as those of a bond or bridge

    @property
    def labels(self) -> tuple[str, ...]:
        return self.name, self.kind, self.driver, self.master, self.pci, self.rdma


class Interfaces:
    """Identifies interfaces, and remembers the results. Not thread-safe."""

    def __init__(self, roots: Roots):
        self._class = f"{roots.sysfs}/class/net"
        self._infiniband = f"{roots.sysfs}/class/infiniband"
        self._known: dict[str, Interface] = {}
        self._until = 0.0
        self._chosen: list[Interface] = []

    def look(self, present: Set[str], node_folder: str) -> list[Interface]:
        """The interfaces to report, out of those that are present."""
        now = time.monotonic()
        if now < self._until and self._known.keys() == present:
            return self._chosen
        expired = now >= self._until
        rdma = self._rdma()
        known: dict[str, Interface] = {}
        for name in present:
            interface = self._known.get(name)
            if interface is None or (expired and (interface.standing or interface.may_change)):
                interface = self._identify(name, rdma)
            known[name] = interface
        self._known = known
        self._chosen = _choose(list(known.values()), self._default_routes(node_folder))
        self._until = now + REFRESH_SECONDS
        return self._chosen

    def forget(self, name: str) -> None:
        """Makes the next look identify an interface again, because it has changed."""
        self._known.pop(name, None)

    def _identify(self, name: str, rdma: dict[str, set[str]]) -> Interface:
        folder = f"{self._class}/{name}"
        entries = _entries(folder)
        master = os.path.basename(_link(f"{folder}/master"))
        devices = rdma.get(name, set())
        if "device" in entries:
            real = os.path.realpath(f"{folder}/device")
            addresses = [part for part in real.split("/") if _PCI.fullmatch(part)]
            return Interface(
                name,
                VIRTUAL_FUNCTION if os.path.lexists(f"{folder}/device/physfn") else PHYSICAL,
                os.path.basename(_link(f"{folder}/device/driver")),
                master,
                addresses[-1] if addresses else "",
                os.path.basename(real),
                ",".join(sorted(devices | _entries(f"{folder}/device/infiniband"))),
                standing=True,
            )
        return Interface(
            name,
            self._kind(name, entries),
            master=master,
            rdma=",".join(sorted(devices)),
            standing=name == LOOPBACK or self._stands(name, entries, _DEPTH),
            may_change=not entries.isdisjoint(("bonding", "bridge")),
        )

    def _kind(self, name: str, entries: set[str]) -> str:
        if name == LOOPBACK:
            return "loopback"
        try:
            for line in read(f"{self._class}/{name}/uevent").split(b"\n"):
                key, _, kind = line.partition(b"=")
                if key == b"DEVTYPE":
                    return word(kind)
        except Unreadable:
            pass  # the kind is guessed from other files
        for entry, kind in (("bonding", "bond"), ("bridge", "bridge"), ("tun_flags", "tun")):
            if entry in entries:
                return kind
        return "virtual"

    def _stands(self, name: str, entries: set[str], depth: int) -> bool:
        """Whether there is a device below. The kernel has links lower_<name> to the interfaces below another."""
        if "device" in entries:
            return True
        lower = [entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_")]
        return depth > 0 and any(self._stands(one, _entries(f"{self._class}/{one}"), depth - 1) for one in lower)

    def _rdma(self) -> dict[str, set[str]]:
        """Interface -> RDMA devices with a port that belongs to it. For IPoIB, the interface's device shows that."""
        found: dict[str, set[str]] = {}
        for device in _entries(self._infiniband):
            ports = f"{self._infiniband}/{device}/ports"
            for port in _entries(ports):
                try:
                    interface = word(read(f"{ports}/{port}/gid_attrs/ndevs/0"))
                except Unreadable:
                    continue  # EINVAL for a port without an interface
                found.setdefault(interface, set()).add(device)
        return found

    def _default_routes(self, node_folder: str) -> frozenset[str]:
        try:
            return default_routes(read(f"{node_folder}/route"))
        except Unreadable:
            return frozenset()  # a kernel without IPv4


def _choose(interfaces: list[Interface], routed: Collection[str]) -> list[Interface]:
    interfaces.sort(key=_order)
    if any(interface.bus for interface in interfaces):
        chosen = [interface for interface in interfaces if interface.standing or interface.name in routed]
        return chosen[:MOST]
    return interfaces[: MOST_WITHOUT_HARDWARE + 1]  # the loopback is the first of them


def _order(interface: Interface) -> tuple[int, str]:
    """The sort key: hardware first, then interfaces on top of it, virtual functions last. MOST cuts off the end."""
    rank = 3 if interface.kind == VIRTUAL_FUNCTION else 0 if interface.bus or interface.name == LOOPBACK else 1
    return rank if interface.standing else 2, interface.name


def _entries(folder: str) -> set[str]:
    try:
        return set(names(folder))
    except Unreadable:
        return set()


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
