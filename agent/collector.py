"""The collectors, registered by name: a module of `collectors` each, with ``create(options) -> Collector``."""

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
    reads: str  # what it reads, as the help of its flags says it


COLLECTORS: tuple[Entry, ...] = (
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
    Entry("clock", "the clock's offset and synchronisation"),
    Entry("identity", "pods and Slurm jobs of ranks and GPUs"),
    Entry("advice", "what to change in the runs of this node, by their ledgers"),
)
"""In the order in which a scrape asks them: `ranks` comes first, others look up its ranks."""


class Advised(NamedTuple):
    """One change that a run is advised."""

    owner: str
    run: str
    advice: str
    """The rule that says it."""
    family: str
    change: str
    share: float
    """Of the time of its ranks, that it would save."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the collectors need to know."""

    ledgers: LedgerStore
    roots: Roots = field(default_factory=Roots)
    advise: Callable[[str], list[Advised]] | None = None
    """What to change in the runs of a ledger directory. Its rules stand above the agent: who starts one brings them."""
    processes: RankProcesses = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "processes", RankProcesses(self.ledgers, self.roots))


class Collector(Protocol):
    """Reads its source at each scrape and keeps nothing between them but what a counter needs.

    Runs in one thread at a time, under a deadline. What fails for one device, file or value is told to the reading and
    costs that alone. Raises Absent where the node has nothing of its kind; any other exception fails the collector.
    """

    def collect(self, reading: Reading) -> None: ...


def create_collectors(options: Options, names: Iterable[str]) -> dict[str, Collector]:
    """The named collectors, in the order of the registry."""
    wanted = set(names)
    return {
        entry.name: import_module(f".collectors.{entry.name}", __package__).create(options)
        for entry in COLLECTORS
        if entry.name in wanted
    }
