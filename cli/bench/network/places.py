"""The place of a rank: its node, the address at which others reach it, and the rate of the node's adapters."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ....agent.files import Roots, Unreadable, names, number, read
from ....agent.kernel.interfaces import Interfaces
from ....ledger.clock import own_clock
from ....linux import infiniband

_SIOCGIFADDR = 0x8915
_NO_SPEED = (b"-1", b"4294967295")
_BYTES_OF_MEGABIT = 125_000
_SYNTHETIC_PORT = 9  # nothing is sent to it: a connected UDP socket shows which way packets would take


class Place(NamedTuple):
    """The place of a rank. The values are plain, so that ranks can send them to each other."""

    node: str
    """The name of the node, as in ledgers."""
    key: str
    """Ranks with the same key reach each other without a network: they have the same kernel and network namespace."""
    address: str
    """The address at which other nodes reach this one; empty if unknown."""
    tools: tuple[str, ...] = ()
    """Installed programs that measure links."""


class Way(NamedTuple):
    """The way out of a node."""

    adapters: str
    rate: float | None
    """The bytes/s of all these adapters together, in one direction; None if not known."""


def place(env: Mapping[str, str], master: str, tools: Sequence[str]) -> Place:
    """The place of this rank. ``master``: the address of rank 0."""
    node = env.get("WHYIDLE_NODE") or env.get("NODE_NAME") or socket.gethostname()
    try:
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        namespace = ""
    return Place(node, f"{node} {own_clock().boot} {namespace}", local_address(master), tuple(tools))


def local_address(other: str) -> str:
    """The address of this node on the way to another one; empty if there is no route."""
    try:
        found = socket.getaddrinfo(other, _SYNTHETIC_PORT, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except (OSError, IndexError):
        return ""


def nodes_of(places: Sequence[Place]) -> list[list[int]]:
    """The ranks of each node. Nodes are in the order of their lowest ranks."""
    found: dict[str, list[int]] = {}
    for rank, one in enumerate(places):
        found.setdefault(one.key, []).append(rank)
    return list(found.values())


def labels_of(places: Sequence[Place], nodes: Sequence[Sequence[int]]) -> list[str]:
    """A name for each node, followed by its address if two nodes have the same name."""
    plain = [places[ranks[0]].node for ranks in nodes]
    return [
        name if plain.count(name) == 1 else f"{name} {places[ranks[0]].address or f'rank {ranks[0]}'}"
        for name, ranks in zip(plain, nodes, strict=True)
    ]


def way_out(backend: str, env: Mapping[str, str], other: str, roots: Roots) -> Way:
    """The adapters on this node's way to another address, and the rate that they report."""
    if backend == "nccl" and env.get("NCCL_IB_DISABLE", "0") != "1" and env.get("NCCL_NET", "").lower() != "socket":
        ports = _rdma_ports(roots, env.get("NCCL_IB_HCA", ""))
        if ports:
            return Way(", ".join(ports), float(sum(ports.values())))
    listed = env.get("NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME", "")
    name = listed.split(",")[0].strip("=")
    if not name or name[0] == "^" or name not in _interfaces():
        name = _interface_of(local_address(other))
    return Way(name, _speed(name, roots)) if name else Way("", None)


def _interfaces() -> list[str]:
    try:
        return [name for _, name in socket.if_nameindex()]
    except OSError:
        return []


def _interface_of(address: str) -> str:
    """The interface with an IPv4 address; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in _interfaces():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has none
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _speed(name: str, roots: Roots) -> float | None:
    """The bytes/s of an interface. None for one without hardware: veth, for example, always reports 10 Gbit/s."""
    known = Interfaces(roots).look({name}, f"{roots.procfs}/self/net")
    if not any(interface.name == name and interface.standing and name != "lo" for interface in known):
        return None
    try:
        data = read(f"{roots.sysfs}/class/net/{name}/speed").strip()
        return float(number(data) * _BYTES_OF_MEGABIT) or None if data not in _NO_SPEED else None
    except Unreadable:
        return None


def _rdma_ports(roots: Roots, chosen: str) -> dict[str, int]:
    """The active ports that NCCL_IB_HCA allows, as device:port -> bytes/s."""
    found: dict[str, int] = {}
    folder = f"{roots.sysfs}/class/infiniband"
    for device in _listed(folder):
        for port in _listed(f"{folder}/{device}/ports"):
            base = f"{folder}/{device}/ports/{port}"
            try:
                if infiniband.state(read(f"{base}/state")) == infiniband.ACTIVE and allowed(device, port, chosen):
                    found[f"{device}:{port}"] = infiniband.rate(read(f"{base}/rate")).bytes_per_second
            except Unreadable:
                continue
    return found


def _listed(folder: str) -> list[str]:
    try:
        return sorted(names(folder))
    except Unreadable:
        return []


def allowed(device: str, port: str, chosen: str) -> bool:
    """Whether NCCL_IB_HCA allows this port. It lists prefixes of names, after ``=`` whole names, and after ``^``
    exceptions. Source: NCCL's user guide, environment variables."""
    if not chosen:
        return True
    exclude = chosen.startswith("^")
    whole = chosen.lstrip("^").startswith("=")
    for item in chosen.lstrip("^").lstrip("=").split(","):
        name, _, wanted = item.partition(":")
        same = device == name if whole else device.startswith(name)
        if same and wanted in ("", port):
            return not exclude
    return exclude
