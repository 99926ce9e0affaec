"""RDMA adapters: their ports, which of them this process uses, and why it does not use any."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Mapping
from typing import NamedTuple

from ...ledger.links import RDMA_MISSING
from ...linux import infiniband
from ...linux.unreadable import Unreadable

ADAPTERS = "/sys/class/infiniband"
_DEVICES = "/dev/infiniband"
_LEAST_LOCKED = 64 << 20
"""NCCL's buffers for one peer are larger than this."""
_IPC_LOCK = 1 << 14  # CAP_IPC_LOCK: no limit
_LIBRARY = "libibverbs.so.1"
_LIBRARY_FOLDERS = (
    *("/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib"),
    f"/usr/lib/{platform.machine()}-linux-gnu",
)
_PEER_MODULES = re.compile(r"^(nvidia_peermem|nv_peer_mem) ", re.MULTILINE)
_DMABUF_SINCE = (5, 12)
_MOST_PORTS = 64


class Port(NamedTuple):
    device: str
    number: int
    active: bool
    bits_per_second: int  # 0: not known
    interface: str  # empty if it has none
    subnet: str  # of InfiniBand; empty for RoCE

    @property
    def name(self) -> str:
        return f"{self.device}/{self.number}"


def ports(root: str = ADAPTERS) -> list[Port]:
    """All ports of the node; none if it has no adapters."""
    found: list[Port] = []
    for device in _entries(root):
        for number in _entries(f"{root}/{device}/ports"):
            if number.isdigit() and len(found) < _MOST_PORTS:
                found.append(_port(root, device, number))
    return found


def _port(root: str, device: str, number: str) -> Port:
    folder = f"{root}/{device}/ports/{number}"
    try:
        active = infiniband.state(_read(f"{folder}/state")) == infiniband.ACTIVE
    except Unreadable:
        active = False
    try:
        rate = infiniband.rate(_read(f"{folder}/rate")).bytes_per_second * 8 if active else 0
    except Unreadable:
        rate = 0
    ethernet = _read(f"{folder}/link_layer").strip() == b"Ethernet"
    gid = _read(f"{folder}/gids/0").decode("ascii", "replace").strip()
    interface = _read(f"{folder}/gid_attrs/ndevs/0").decode("ascii", "replace").strip()
    return Port(device, int(number), active, rate, interface, "" if ethernet else gid[:19])


def moved_bytes(port: Port, root: str = ADAPTERS) -> int | None:
    """What anybody has moved over a port, in both directions; None if it is not known."""
    counters = f"{root}/{port.device}/ports/{port.number}"
    # IBTA counts words of four bytes; EFA counts bytes.
    for names, unit in (
        (("counters/port_xmit_data", "counters/port_rcv_data"), 4),
        (("hw_counters/tx_bytes", "hw_counters/rx_bytes"), 1),
    ):
        values = [_read(f"{counters}/{name}").strip() for name in names]
        if all(value.isdigit() for value in values):
            return unit * sum(map(int, values))
    return None


def missing(found: list[Port], gloo: bool, cuda: bool, env: Mapping[str, str] = os.environ, root: str = "") -> int:
    """The bits of `rdma_missing`, for a process that uses none of these ports. ``root`` is before /dev, /etc, ..."""
    if not found:
        return 0
    nccl = not gloo
    absent = {
        "NCCL_IB_DISABLE": nccl and _number(env.get("NCCL_IB_DISABLE", "")) != 0,
        "NCCL_NET": nccl and env.get("NCCL_NET", "").lower() == "socket",
        "NCCL_IB_HCA": nccl
        and any(port.active for port in found)
        and not any(port.active and fits(port, env.get("NCCL_IB_HCA", "")) for port in found),
        "devices": not any(name.startswith("uverbs") for name in _entries(root + _DEVICES)),
        "memlock": _locks_too_little(root),
        "libibverbs": not _has_library(env, root),
        "port": not any(port.active for port in found),
        "gpudirect": cuda and _lacks_gpudirect(root),
        "backend": gloo,
    }
    return sum(1 << bit for bit, why in enumerate(RDMA_MISSING) if absent[why])


def gpudirect_missing(root: str = "") -> int:
    """The bit of `rdma_missing` that also a process can have that uses RDMA."""
    return 1 << RDMA_MISSING.index("gpudirect") if _lacks_gpudirect(root) else 0


def fits(port: Port, wanted: str) -> bool:
    """Whether NCCL_IB_HCA allows a port: `^` excludes, `=` matches whole names, and a name may have `:PORT`."""
    names = wanted.strip()
    excludes = names.startswith("^")
    names = names.removeprefix("^")
    exact = names.startswith("=")
    names = names.removeprefix("=")
    if not names:
        return True
    matches = False
    for entry in names.split(","):
        name, _, number = entry.strip().partition(":")
        same = port.device == name if exact else port.device.startswith(name)
        matches |= same and (not number or number == str(port.number))
    return matches != excludes


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return 0


def _locks_too_little(root: str) -> bool:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY or limit >= _LEAST_LOCKED:
        return False
    effective = re.search(rb"^CapEff:\s*([0-9a-f]+)", _read(f"{root}/proc/self/status"), re.MULTILINE)
    return effective is not None and not int(effective[1], 16) & _IPC_LOCK


def _has_library(env: Mapping[str, str], root: str) -> bool:
    folders = [*env.get("LD_LIBRARY_PATH", "").split(":"), *_LIBRARY_FOLDERS]
    if any(os.path.exists(f"{root}{folder}/{_LIBRARY}") for folder in folders if folder):
        return True
    return _LIBRARY.encode() in _read(f"{root}/etc/ld.so.cache", 1 << 20)


def _lacks_gpudirect(root: str) -> bool:
    """Whether neither a module nor a dma-buf lets the adapter read the GPU's memory. Not, if that is not known."""
    modules = _read(f"{root}/proc/modules", 1 << 20).decode("ascii", "replace")
    driver = _read(f"{root}/proc/driver/nvidia/version")
    if not modules or not driver or _PEER_MODULES.search(modules):
        return False
    kernel = re.match(r"(\d+)\.(\d+)", platform.release())
    recent = kernel is not None and (int(kernel[1]), int(kernel[2])) >= _DMABUF_SINCE
    return not (recent and b"Open Kernel Module" in driver)


def _entries(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: str, size: int = 4096) -> bytes:
    """Empty if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(size) or b""
    except OSError:
        return b""
