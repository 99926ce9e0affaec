"""Where CPUs, GPUs and adapters of the simulated node are: NUMA nodes and sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whyidle.agent.files import Roots

from . import processes


@dataclass(frozen=True)
class Tree:
    """``nodes``: the CPUs of each NUMA node. ``sockets``: the socket of each, or none if the kernel does not tell.
    ``gpus`` and ``adapters``: the node of each, by PCI address and by path in `class`."""

    nodes: Mapping[int, str]
    sockets: Mapping[int, int] = field(default_factory=dict)
    gpus: Mapping[str, int] = field(default_factory=dict)
    adapters: Mapping[str, int] = field(default_factory=dict)


ONE_SOCKET = Tree({0: "0-15"}, {0: 0}, {"0000:1b:00.0": 0, "0000:2b:00.0": 0})
TWO_SOCKETS = Tree(
    {0: "0-3,8-11", 1: "4-7,12-15"},
    {0: 0, 1: 1},
    {"0000:1b:00.0": 0, "0000:2b:00.0": 1},
    {"infiniband/mlx5_0": 1, "infiniband/mlx5_1": 0},
)
CLUSTERS = Tree(
    {0: "0-13", 1: "14-27", 2: "28-41", 3: "42-55"}, {0: 0, 1: 0, 2: 1, 3: 1}, {"0000:1b:00.0": 1, "0000:2b:00.0": 2}
)
"""Two Xeons with two sub-NUMA clusters each."""
NPS4 = Tree(
    {node: f"{16 * node}-{16 * node + 15},{16 * node + 128}-{16 * node + 143}" for node in range(8)},
    {node: node // 4 for node in range(8)},
    {"0000:43:00.0": 3, "0000:c3:00.0": 7},
)
"""Two EPYCs with four nodes per socket, numbered as `lscpu` shows them."""
GB200 = Tree(
    {0: "0-71", 1: "72-143", 2: "", 10: "", 18: "", 26: ""},
    {0: 0, 1: 1},
    {"0008:01:00.0": 0, "0018:01:00.0": 1},
)
"""Two Graces. The memory of each GPU is a node without CPUs."""
POWER9 = Tree(
    {0: "0-79", 8: "80-159", 254: "", 255: ""},
    {0: 0, 8: 8},
    {"0004:04:00.0": 0, "0035:03:00.0": 8},
    {"infiniband/mlx5_0": 8},
)
UNTOLD = Tree({0: "0-3", 1: "4-7"}, {0: 0, 1: 1}, {"0000:1b:00.0": -1, "0000:2b:00.0": -1})
"""The firmware does not tell the nodes of devices."""
WITHOUT_SOCKETS = Tree({0: "0-3", 1: "4-7"}, {}, {"0000:1b:00.0": 0, "0000:2b:00.0": 1})


def build(roots: Roots, tree: Tree = TWO_SOCKETS, cpus: Mapping[int, int] | None = None) -> None:
    """``cpus``: rank -> the CPU on which its main thread ran last. Default: 3. All ranks may use all CPUs."""
    system = Path(roots.sysfs, "devices/system")
    for node, listed in tree.nodes.items():
        _write(system / f"node/node{node}/cpulist", f"{listed}\n")
        if node in tree.sockets:
            first = listed.split("-")[0].split(",")[0]
            _write(system / f"cpu/cpu{first}/topology/physical_package_id", f"{tree.sockets[node]}\n")
    policy = system / "cpu/cpufreq/policy0"
    for name, value in {
        "governor": "schedutil",
        "driver": "acpi-cpufreq",
        "min_freq": "800",
        "max_freq": "3000",
    }.items():
        _write(policy / f"scaling_{name}", f"{value}\n")
    _write(policy / "cpuinfo_max_freq", "4000\n")
    for address, node in tree.gpus.items():
        _write(Path(roots.sysfs, "bus/pci/devices", address, "numa_node"), f"{node}\n")
    for name, node in tree.adapters.items():
        folder = Path(roots.sysfs, "class", name)
        _write(folder / "device/numa_node", f"{node}\n")
    for rank, pid in enumerate(processes.RANKS):
        folder = Path(roots.procfs, str(pid))
        with open(folder / "status", "a") as status:
            status.write("Cpus_allowed_list:\t0-15\nMems_allowed:\t3\nMems_allowed_list:\t0-1\n")
        _write(folder / "numa_maps", "55d1f3a00000 prefer=relative:1 file=/usr/bin/python3.11 mapped=612 N0=612\n")
        if cpus and rank in cpus:
            run_on(roots, rank, cpus[rank])


def run_on(roots: Roots, rank: int, cpu: int) -> None:
    """The main thread of a rank ran last on this CPU."""
    path = Path(roots.procfs, str(processes.RANKS[rank]), "stat")
    head, parenthesis, rest = path.read_text().rpartition(")")
    fields = rest.split(" ")
    fields[37] = str(cpu)  # field 39: the first of these is empty, the next is number 3
    path.write_text(head + parenthesis + " ".join(fields))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
