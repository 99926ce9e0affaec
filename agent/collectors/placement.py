"""The collector `placement`: on which NUMA node a rank runs, and on which its GPU and its adapter are."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ...ledger.directory import key_of
from ...ledger.reader import Ledger
from ...linux.cpu_lists import listed
from ..collector import Options
from ..files import KeptFiles, Unreadable, names, number, read
from ..ledgers import rank_labels, rank_name
from ..metrics.placement import SAMPLES
from ..parsers import numa
from ..parsers.numa import Node
from ..processes.rank_processes import RankProcess
from ..reading import Absent, Reading
from .gpu.unhooked import normal

LOOK_AGAIN_SECONDS = 60.0
"""How often everything is read that rarely changes: nodes, allowed CPUs, memory policy, the nodes of devices."""
_POLICY_BYTES = 48
"""The kernel walks the pages of as many mappings as fit into a read. This is less than one line."""
_GONE = ("missing", "gone")


def create(options: Options) -> PlacementCollector:
    return PlacementCollector(options)


@dataclass(slots=True)
class Binding:
    """Where a rank may run, runs, and has its devices. Empty or None: not known."""

    owner: str
    run: str
    rank: int
    cpus: str = ""
    """The CPUs that its main thread may use, as `0-3,8`."""
    cpu_nodes: tuple[int, ...] = ()
    memory_nodes: str = ""
    policy: str = ""
    ran_on: dict[int, int] = field(default_factory=dict)
    """Node -> how many samples found the main thread there."""
    gpu_node: int | None = None
    adapter: str = ""
    adapter_node: int | None = None
    far: tuple[str, ...] = ()
    """The devices that most samples found at another socket."""


@dataclass(slots=True)
class _Rank:
    binding: Binding
    look_at: float = 0.0
    counts: Counter[tuple[str, int, int, bool]] = field(default_factory=Counter)
    """Device, its node, the node of the CPU, far -> samples."""


class PlacementCollector:
    """Samples the CPU of each rank once per scrape."""

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic):
        self._options = options
        self._roots = options.roots
        self._clock = clock
        self._files = KeptFiles()
        self._nodes: dict[int, Node] = {}
        self._nodes_at = 0.0
        self._ranks: dict[tuple[object, int, int], _Rank] = {}

    def bindings(self) -> list[Binding]:
        """Those of the last scrape, by rank."""
        found = [kept.binding for kept in self._ranks.values() if kept.binding.ran_on]
        return sorted(found, key=lambda one: (one.owner, one.run, one.rank))

    def collect(self, reading: Reading) -> None:
        now = self._clock()
        if now >= self._nodes_at:
            self._nodes, self._nodes_at = self._read_nodes(reading), now + LOOK_AGAIN_SECONDS
        if sum(bool(node.cpus) for node in self._nodes.values()) < 2:
            self._ranks.clear()
            raise Absent("a second NUMA node with CPUs")
        before, self._ranks = self._ranks, {}
        for process in self._options.processes.look():
            ledger = process.ledger
            key = (key_of(ledger), process.pid, ledger.pid_start_ticks)
            kept = before.get(key) or _Rank(Binding(*key_of(ledger)))
            try:
                if now >= kept.look_at:
                    self._look(reading, kept, process)
                    kept.look_at = now + LOOK_AGAIN_SECONDS
                stat = self._files.attribute(self._path(process, "stat"))
                self._sample(kept, numa.processor(stat))
            except Unreadable as error:
                if error.reason not in _GONE:
                    reading.error(rank_name(ledger), "placement", error.reason)
                continue
            self._ranks[key] = kept
            for (device, device_on, ran_on, far), count in kept.counts.items():
                place = "far" if far else "near"
                reading.add(SAMPLES, (*rank_labels(ledger), device, str(device_on), str(ran_on), place), count)
        for key in before.keys() - self._ranks.keys():
            self._files.drop(f"{self._roots.procfs}/{key[1]}/stat")

    def _path(self, process: RankProcess, file: str) -> str:
        return f"{self._roots.procfs}/{process.pid}/{file}"

    def _read_nodes(self, reading: Reading) -> dict[int, Node]:
        system = f"{self._roots.sysfs}/devices/system"
        try:
            folders = [name for name in names(f"{system}/node") if name[4:].isdigit() and name.startswith("node")]
        except Unreadable:  # a kernel without NUMA, or a container without sysfs
            return {}
        found: dict[int, Node] = {}
        for folder in folders:
            try:
                cpus = numa.numbers(read(f"{system}/node/{folder}/cpulist"))
            except Unreadable as error:
                reading.error("", "node/cpulist", error.reason)
                continue
            found[int(folder[4:])] = Node(cpus, _socket(system, cpus))
        return found

    def _look(self, reading: Reading, kept: _Rank, process: RankProcess) -> None:
        """Reads what rarely changes. Raises Unreadable if the process has ended, or does not tell its CPUs."""
        binding = kept.binding
        status = read(self._path(process, "status"))
        cpus = numa.allowed(status, "Cpus")
        binding.cpus, binding.cpu_nodes = listed(cpus), numa.nodes_of(cpus, self._nodes)
        binding.memory_nodes = listed(numa.allowed(status, "Mems"))
        binding.policy = _policy(self._path(process, "numa_maps"))
        address = self._options.gpus.get(normal(process.ledger.strings["uuid"]), "")
        binding.gpu_node = self._node(reading, f"bus/pci/devices/{address}") if address else None
        binding.adapter, folder = _adapter(process.ledger)
        binding.adapter_node = self._node(reading, f"{folder}/device") if folder else None

    def _node(self, reading: Reading, device: str) -> int | None:
        try:
            return numa.node_of_device(read(f"{self._roots.sysfs}/{device}/numa_node"))
        except Unreadable as error:
            if error.reason not in _GONE:  # a virtual device has none
                reading.error("", "numa_node", error.reason)
            return None

    def _sample(self, kept: _Rank, cpu: int) -> None:
        binding = kept.binding
        on = next(iter(numa.nodes_of((cpu,), self._nodes)), None)
        if on is None:
            return
        binding.ran_on[on] = binding.ran_on.get(on, 0) + 1
        for device, device_on in (("gpu", binding.gpu_node), ("adapter", binding.adapter_node)):
            far = None if device_on is None else numa.is_far(on, device_on, self._nodes)
            if device_on is not None and far is not None:
                kept.counts[device, device_on, on, far] += 1
        binding.far = tuple(device for device in ("gpu", "adapter") if _mostly_far(kept.counts, device))


def _mostly_far(counts: Counter[tuple[str, int, int, bool]], device: str) -> bool:
    far = sum(count for key, count in counts.items() if key[0] == device and key[3])
    return 2 * far > sum(count for key, count in counts.items() if key[0] == device)


def _socket(system: str, cpus: frozenset[int]) -> int:
    try:
        return number(read(f"{system}/cpu/cpu{min(cpus)}/topology/physical_package_id"))
    except (Unreadable, ValueError):  # ValueError: a node without CPUs
        return -1


def _policy(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # only root and the user of the process may read it
        return ""
    try:
        return numa.policy(os.read(fd, _POLICY_BYTES))
    except OSError:
        return ""
    finally:
        os.close(fd)


def _adapter(ledger: Ledger) -> tuple[str, str]:
    """The adapter that carries most of the rank's transfers, and its folder in sysfs; empty if none does."""
    moved = [link for link in ledger.links if link.kind in ("rdma", "tcp") and link.carried]
    if not moved:
        return "", ""
    busiest = max(moved, key=lambda link: link.carried)
    name = busiest.name.partition("/")[0]
    if not name or name.startswith(".") or "/" in name:  # the ledger is anybody's
        return "", ""
    return name, f"class/{'infiniband' if busiest.kind == 'rdma' else 'net'}/{name}"
