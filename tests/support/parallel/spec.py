"""The description of a run. Written by the test and read by the ranks, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

RANKS = 4
NOTHING, READS, COMPUTE, LINK = "nothing", "slow-reads", "slow-compute", "slow-link"
FAULTS = (NOTHING, READS, COMPUTE, LINK)


@dataclass(frozen=True)
class Spec:
    """One run: a shape, a fault in it, and where its ranks leave their logs and ledgers."""

    shape: str
    fault: str
    folder: str
    steps: int
    recorded: bool = True
    """Whether whyidle is attached."""
    namespaces: tuple[str, ...] = ()
    """One network namespace per rank; empty if all ranks share the loopback interface."""
    address: str = "127.0.0.1"
    """The address at which rank 0 serves the store."""
    interface: str = "lo"

    @property
    def name(self) -> str:
        return f"{self.shape}-{self.fault}"

    @property
    def ledgers(self) -> Path:
        return Path(self.folder, "ledgers")

    def log(self, rank: int) -> Path:
        return Path(self.folder, f"rank-{rank}.jsonl")

    @property
    def output(self) -> Path:
        """The folder of what the ranks print."""
        return Path(self.folder, "output")

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Spec:
        fields = json.loads(text)
        return cls(**{**fields, "namespaces": tuple(fields["namespaces"])})
