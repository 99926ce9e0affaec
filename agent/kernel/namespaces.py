"""Finds the node's own network counters, and the network namespaces of its ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...ledger.directory import key_of
from ..collector import Options
from ..files import Roots, Unreadable, reason_of
from ..ledgers import rank_labels
from ..processes.rank_processes import RankProcess
from ..reading import Reading

HOST = "host"
MOST_NAMESPACES = 32
_UNSEEN_NODE = (
    "the network interfaces of the node",
    "the first process is hidden in this procfs, so the agent reads its own network namespace",
    "mount the host's /proc without hidepid, or give the agent the host's network (hostNetwork: true)",
)
_UNSEEN_RANKS = (
    "the network of ranks in other network namespaces",
    "the agent cannot see the processes of other users",
    "run it as root, or mount /proc without hidepid",
)


def node_folder(roots: Roots, reading: Reading) -> str:
    """The directory `net` of the node.

    In a procfs that is mounted elsewhere, `net` shows the namespace of its reader. So the `net` of process 1 is used
    there. Any user may read it.
    """
    if roots.procfs == "/proc":
        return "/proc/net"
    folder = f"{roots.procfs}/1/net"
    if os.path.isdir(folder):
        return folder
    reading.blind(*_UNSEEN_NODE)
    return f"{roots.procfs}/net"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace that contains live ranks. The node's own is called `host`."""

    name: str
    folder: str  # `net` of one of its processes; its files must not stay open, which would keep the namespace alive
    ranks: tuple[tuple[str, str, str], ...]  # owner, run and rank


class RankNamespaces:
    """Finds the ranks' network namespaces by the inode of `net/dev`.

    The kernel has one such inode per namespace (fs/proc/generic.c, proc_alloc_inum). Unlike the link `ns/net`, any user
    can see it.
    """

    def __init__(self, options: Options):
        self._options = options
        self._known: dict[tuple[int, str, int], tuple[int, int]] = {}

    def look(self, node: str, reading: Reading) -> list[Namespace]:
        """All namespaces of live ranks, including the node's own. ``node`` is the node's `net`."""
        try:
            processes = self._options.processes.look()
        except TimeoutError:
            reading.error("", "the ranks' processes", "timeout")
            return []
        if not processes:
            self._known.clear()
            return []
        try:
            own = _inode(node)
        except Unreadable:
            return []  # the collector that reads the node's counters reports this
        members: dict[tuple[int, int], list[RankProcess]] = {}
        known: dict[tuple[int, str, int], tuple[int, int]] = {}
        for process in processes:
            key = (process.pid, process.ledger.path, process.ledger.created_unix_ns)
            try:
                inode = known[key] = self._known.get(key) or _inode(self._folder(process.pid))
            except Unreadable as error:
                if error.reason == "denied":
                    reading.blind(*_UNSEEN_RANKS)
                continue  # otherwise it has ended
            members.setdefault(inode, []).append(process)
        self._known = known
        found = [self._namespace(inode == own, processes) for inode, processes in members.items()]
        return sorted(found, key=lambda namespace: namespace.name)[:MOST_NAMESPACES]

    def _folder(self, pid: int) -> str:
        return f"{self._options.roots.procfs}/{pid}/net"

    def _namespace(self, own: bool, processes: list[RankProcess]) -> Namespace:
        processes = sorted(processes, key=lambda process: key_of(process.ledger))
        ranks = tuple(rank_labels(process.ledger) for process in processes)
        return Namespace(HOST if own else "/".join(ranks[0]), self._folder(processes[0].pid), ranks)


def _inode(folder: str) -> tuple[int, int]:
    try:
        status = os.stat(f"{folder}/dev")
    except OSError as error:
        raise Unreadable(reason_of(error), folder) from error
    return status.st_dev, status.st_ino
