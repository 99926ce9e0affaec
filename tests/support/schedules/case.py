"""The definition of a simulated run: a mesh of ranks, a schedule, times of compute and transfers, and at most one
fault."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from whyidle.verdict.lookthrough import Group

FAMILIES = ("compute", "storage", "cpu", "host", "unattributed")
"""The families of a rank's own time, in the order of the vectors of the simulator."""
COMPUTE, STORAGE, CPU, HOST, UNATTRIBUTED = range(5)


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault. ``size``: how much longer something takes, as a share of a healthy step or as a factor.

    ============== ============================================================ =======================
    kind           what is slow                                                 unit of ``size``
    ============== ============================================================ =======================
    read           the reads of rank ``at`` before each step                    healthy steps
    decode         the CPU work of rank ``at`` on its data                      healthy steps
    pause          a host pause of rank ``at`` after every second step          healthy steps
    compute        all compute of rank ``at``                                   factor, minus 1
    stage          all compute of every rank of stage ``at``                    factor, minus 1
    link_tp        the all-reduces of the TP group number ``at``                factor, minus 1
    link_dp        the all-reduces of the DP group number ``at``                factor, minus 1
    link_pp        the messages between two neighbours of a pipeline            factor, minus 1
    microbatches   microbatches differ in length between the DP replicas        spread (sigma of a lognormal)
    reads_turn     each step another rank's reads are slow                      healthy steps
    ============== ============================================================ =======================
    """

    kind: str
    at: int = 0
    size: float = 0.5


@dataclass(frozen=True, slots=True)
class Case:
    """One simulated run. Times are in ns. ``forward`` is for one microbatch on one stage; the backward pass takes twice
    that."""

    dp: int = 1
    pp: int = 1
    tp: int = 1
    microbatches: int = 4
    schedule: str = "1f1b"  # or "gpipe"
    steps: int = 5
    layers: int = 2  # TP all-reduces in a microbatch's forward; as many in its backward
    forward: int = 4_000_000
    jitter: float = 0.03  # of compute and of transfers
    tp_transfer: int = 150_000
    dp_transfer: int = 2_000_000
    pp_transfer: int = 200_000
    buffered: bool = False  # sends return at once; otherwise a send ends with its receive
    norm: bool = True  # one small all-reduce over the world at the end of a step
    heavy_last: float = 0.0  # how much more the last stage computes (a head over a large vocabulary)
    lengths: float = 0.0  # spread of the microbatches' lengths (sigma of a lognormal), without any fault
    late_norm: tuple[int, float] | None = None  # (rank, healthy steps): host time just before the norm, no fault either
    fault: Fault | None = None
    seed: int = 0

    @property
    def ranks(self) -> int:
        return self.dp * self.pp * self.tp

    def rank(self, d: int, p: int, t: int) -> int:
        return (d * self.pp + p) * self.tp + t

    def place(self, rank: int) -> tuple[int, int, int]:
        """(replica, stage, TP index) of a rank."""
        return rank // self.tp // self.pp, rank // self.tp % self.pp, rank % self.tp

    @property
    def step(self) -> int:
        """Compute of one rank in a healthy step, ns."""
        return 3 * self.forward * self.microbatches

    def healthy(self) -> Case:
        return replace(self, fault=None)

    @property
    def name(self) -> str:
        fault = f"{self.fault.kind}@{self.fault.at}x{self.fault.size:g}" if self.fault else "healthy"
        sends = " buffered" if self.buffered and self.pp > 1 else ""
        norm = "" if self.norm else " no-norm"
        norm += " heavy-last" if self.heavy_last else ""
        norm += " noisy" if self.lengths or self.jitter > 0.05 else ""
        mesh = f"dp{self.dp} pp{self.pp} tp{self.tp}"
        return f"{mesh} m{self.microbatches} {self.schedule}{sends}{norm} seed{self.seed} {fault}"


def tp_groups(case: Case) -> list[Group]:
    return [
        Group("tp", tuple(case.rank(d, p, t) for t in range(case.tp))) for d in range(case.dp) for p in range(case.pp)
    ]


def dp_groups(case: Case) -> list[Group]:
    return [
        Group("dp", tuple(case.rank(d, p, t) for d in range(case.dp))) for p in range(case.pp) for t in range(case.tp)
    ]


def pp_groups(case: Case) -> list[Group]:
    return [
        Group("pp", tuple(case.rank(d, p, t) for p in range(case.pp)), p2p=True)
        for d in range(case.dp)
        for t in range(case.tp)
    ]


def world(case: Case) -> Group:
    return Group("world", tuple(range(case.ranks)))


def links(case: Case) -> list[tuple[int, int]]:
    """The pairs of ranks that are neighbours in a pipeline."""
    return [pair for group in pp_groups(case) for pair in pairwise(group.ranks)]
