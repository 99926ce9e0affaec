"""The registry of collectors. Each is a module of `collectors` with a function ``create(options) -> Collector``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import NamedTuple, Protocol

from .files import Roots
from .ledgers import LedgerStore
from .processes.rank_processes import RankProcesses
from .reading import Reading


class Entry(NamedTuple):
    name: str
    reads: str  # what it reads; the help texts of its flags use it


COLLECTORS: tuple[Entry, ...] = (
    Entry("clock", "the clock's offset and synchronisation"),
    Entry("ranks", "the ledgers of this node's ranks"),
    Entry("gpu", "GPUs, through NVML"),
    Entry("nic", "network interfaces"),
    Entry("tcp", "TCP's own counters"),
    Entry("qdisc", "traffic control (tc) of the node's interfaces"),
    Entry("rdma", "InfiniBand, RoCE and EFA adapters"),
    Entry("disk", "block devices"),
    Entry("nfs", "NFS mounts"),
    Entry("lustre", "Lustre mounts"),
    Entry("fuse", "FUSE file systems"),
    Entry("filesystem", "the file systems that ranks read from and write to"),
    Entry("pressure", "pressure stall information of the node"),
    Entry("cgroup", "pressure and CPU throttling of the ranks' cgroups"),
    Entry("cpu", "CPU time of the node"),
    Entry("memory", "memory of the node"),
    Entry("process", "the processes of ranks and their workers"),
    Entry("placement", "the NUMA nodes of ranks, their GPUs and their adapters"),
    Entry("identity", "pods and Slurm jobs of ranks and GPUs"),
    Entry("advice", "what to change in the runs of this node, by their ledgers"),
)
"""In the order in which a scrape asks them. `clock` comes first: Prometheus compares its time with that of the request.
Others use what `ranks` has found."""


class Advised(NamedTuple):
    """One change that whyidle recommends for a run."""

    owner: str
    run: str
    advice: str
    """The name of the rule that recommends it."""
    family: str
    change: str
    share: float
    """The share of the time of the run's ranks that the change would save, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the collectors are created with."""

    ledgers: LedgerStore
    roots: Roots = field(default_factory=Roots)
    advise: Callable[[str], list[Advised]] | None = None
    """Ledger directory -> recommended changes. The caller passes this function in, since `agent` must not import
    `advisor`.
    """
    processes: RankProcesses = field(init=False)
    gpus: dict[str, str] = field(default_factory=dict)
    """UUID of a GPU or MIG device, without its prefix -> PCI address. The collector `gpu` fills it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "processes", RankProcesses(self.ledgers, self.roots))


class Collector(Protocol):
    """Reads its source at each scrape. Between scrapes it keeps only what its counters need.

    Runs in one thread at a time, under a deadline. If one device, file or value cannot be read, the collector adds an
    error to the reading and continues. It raises Absent if the node has nothing for it to read. Any other exception
    makes the collector fail for this scrape.
    """

    def collect(self, reading: Reading) -> None: ...


def create_collectors(options: Options, names: Iterable[str]) -> dict[str, Collector]:
    """Creates the named collectors, in the order of the registry."""
    wanted = set(names)
    return {
        entry.name: import_module(f".collectors.{entry.name}", __package__).create(options)
        for entry in COLLECTORS
        if entry.name in wanted
    }
