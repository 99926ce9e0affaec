"""Which processes of this node are the ranks, and which are their workers."""

from __future__ import annotations

from dataclasses import dataclass

from ..torch_hooks.ledger import Ledger
from .files import Roots
from .ledgers import LedgerStore


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A live rank's process as this agent sees it, under its procfs."""

    ledger: Ledger  # run, rank, node, device, strings["uuid"], ...
    pid: int  # under the agent's procfs
    workers: tuple[int, ...]  # its descendants: data loader workers and what they started


class RankProcesses:
    """Looks up the live ranks of the newest look at the ledgers. Shared by the collectors that need them."""

    def __init__(self, ledgers: LedgerStore, roots: Roots):
        self._ledgers = ledgers
        self._roots = roots

    def look(self) -> list[RankProcess]:
        """The live ranks whose processes can be seen here."""
        return []
