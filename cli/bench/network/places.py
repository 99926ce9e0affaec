"""Where a rank is: its node, the address that others reach it at, and how fast its way out of the node is."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ....agent.files import Roots, Unreadable, names, number, read
from ....agent.kernel.interfaces import Interfaces
from ....agent.parsers import infiniband
from ....ledger.clock import own_clock

_SIOCGIFADDR = 0x8915
_NO_SPEED = (b"-1", b"4294967295")
_BYTES_OF_MEGABIT = 125_000
_SYNTHETIC_PORT = 9  # nothing is sent to it: a UDP socket that is connected knows which way packets would go


class Place(NamedTuple):
    """Plain values: ranks tell each other."""

    node: str
    """As ledgers name it."""
    key: str
    """Ranks with the same one reach each other without a network: same kernel, same network namespace."""
    address: str
    """At which other nodes reach this one; empty if unknown."""
    tools: tuple[str, ...] = ()
    """Programs that are installed and measure links."""


class Way(NamedTuple):
    """Out of a node. Bytes/s, in one direction, of all adapters together."""

    adapters: str
    rate: float | None


def place(env: Mapping[str, str], master: str, tools: Sequence[str]) -> Place:
    node = env.get("WHYIDLE_NODE") or env.get("NODE_NAME") or socket.gethostname()
    try:
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        namespace = ""
    return Place(node, f"{node} {own_clock().boot} {namespace}", local_address(master), tuple(tools))


def local_address(other: str) -> str:
    """The address of this node on the way to another one; empty if there is no way."""
    try:
        found = socket.getaddrinfo(other, _SYNTHETIC_PORT, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except (OSError, IndexError):
        return ""


def nodes_of(places: Sequence[Place]) -> list[list[int]]:
    """The ranks of each node, by their lowest ranks."""
    found: dict[str, list[int]] = {}
    for rank, one in enumerate(places):
        found.setdefault(one.key, []).append(rank)
    return list(found.values())


def labels_of(places: Sequence[Place], nodes: Sequence[Sequence[int]]) -> list[str]:
    """A name for each node; with its address where two have the same one."""
    plain = [places[ranks[0]].node for ranks in nodes]
    return [
        name if plain.count(name) == 1 else f"{name} {places[ranks[0]].address or f'rank {ranks[0]}'}"
        for name, ranks in zip(plain, nodes, strict=True)
    ]


def way_out(backend: str, env: Mapping[str, str], other: str, roots: Roots) -> Way:
    """How fast this node's way to another address is, by what its adapters say of themselves."""
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
    """The interface that has an IPv4 address; empty if none has."""
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
    """bytes/s. An interface that stands on no hardware has none: veth, for one, always claims 10 Gbit/s."""
    known = Interfaces(roots).look({name}, f"{roots.procfs}/self/net")
    if not any(interface.name == name and interface.standing and name != "lo" for interface in known):
        return None
    try:
        data = read(f"{roots.sysfs}/class/net/{name}/speed").strip()
        return float(number(data) * _BYTES_OF_MEGABIT) or None if data not in _NO_SPEED else None
    except Unreadable:
        return None


def _rdma_ports(roots: Roots, chosen: str) -> dict[str, int]:
    """device:port -> bytes/s of the active ports that NCCL_IB_HCA allows."""
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
    """Whether NCCL_IB_HCA has this port: names or their beginnings, ``=`` for whole names, ``^`` for all but these.
    Source: NCCL's user guide, environment variables."""
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
