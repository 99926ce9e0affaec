"""What the rules of advice judge: the account of a run, its replay, its attempts, and what is known of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...ledger.directory import Run
from ...ledger.reader import Ledger
from ...verdict.accounts import NO_IDLE, RankAccount, RunAccount, account
from ...verdict.chain import conclusion_of
from ...verdict.verdict import verdict
from ..goodput import Goodput, goodput
from ..whatif.changes import Changes
from ..whatif.predict import Basis, Prediction, predict
from ..whatif.replay import saved
from ..whatif.trace import NoTrace, trace_of

MOST_STEPS = 2048
"""Of all ranks together that are replayed: advice asks a dozen questions, and must not take long."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What is known of this node, and not from ledgers. None or empty: not known, and the rules that ask are silent."""

    cpus: float | None = None
    """That the ranks of this node may use together."""
    bytes_per_read: float | None = None
    """Of the ranks and their workers, on average."""
    mtu: Mapping[str, int] = field(default_factory=dict)
    """Interface that carries the ranks' traffic over TCP -> its MTU, bytes."""
    paused: float | None = None
    """The share of the time in which pause frames held up the node's sending."""


NOTHING = Counters()


@dataclass(frozen=True)
class Case:
    account: RunAccount
    basis: Basis | None
    """None where the steps cannot be replayed; `why_not` says why."""
    why_not: str
    goodput: Goodput | None
    counters: Counters = NOTHING

    @property
    def ranks(self) -> list[RankAccount]:
        return self.account.ranks

    @property
    def window(self) -> float:
        """Seconds of all ranks."""
        return self.account.rank_seconds

    @property
    def accelerated(self) -> bool:
        return any(rank.newest.device != "cpu" for rank in self.ranks)

    @property
    def pipeline(self) -> bool:
        return any(group.pairwise for rank in self.ranks for group in rank.groups.values())

    @property
    def nodes(self) -> int:
        return len({rank.newest.node for rank in self.ranks})

    @cached_property
    def verdict(self) -> Mapping[str, Any]:
        return verdict(self.account) or {}

    @cached_property
    def take_turns(self) -> bool:
        """Whether ranks are late by their own compute in turns."""
        return conclusion_of(self.account).take_turns("straggler")

    def seconds(self, *causes: str) -> float:
        """Of all ranks."""
        return sum(rank.seconds[cause] for rank in self.ranks for cause in causes)

    def share(self, *causes: str) -> float:
        """Of the window."""
        return self.seconds(*causes) / self.window

    def workers(self) -> int | None:
        """Data workers of a rank; None where any rank's are not known, or ranks have different numbers."""
        found = {rank.newest.loader_workers for rank in self.ranks}
        return found.pop() if len(found) == 1 and min(found) >= 0 else None

    def bytes(self, *ops: str) -> dict[str, float]:
        """Handed to collectives by operation, of a rank and a step, on average."""
        steps = sum(rank.newest.steps for rank in self.ranks)
        found: dict[str, float] = {}
        for rank in self.ranks:
            for slot in rank.newest.slots:
                for op, size in slot.bytes.items():
                    if not ops or op in ops:
                        found[op] = found.get(op, 0.0) + size
        return {op: size / steps for op, size in found.items()} if steps else {}

    def saves(self, changes: Changes) -> float:
        """What `predict` has as its share, without bounds: 0 where the record does not tell."""
        try:
            return sum(saved(self.basis.trace, changes)) / sum(self.basis.walls) if self.basis else 0.0
        except NoTrace:
            return 0.0

    def predict(self, changes: Changes) -> Prediction | None:
        """None where the record does not tell."""
        try:
            return predict(self.basis, changes) if self.basis else None
        except NoTrace:
            return None


def case_of(
    run: Run,
    ledgers: Sequence[Ledger],
    now_ns: int,
    counters: Counters = NOTHING,
    idle: Mapping[int, float] = NO_IDLE,
    most_steps: int = MOST_STEPS,
) -> Case:
    """Of a whole run, from ledgers (of any run) that were read with their steps. ``idle`` as in a report."""
    whole = account(run, ledgers, now_ns, idle)
    basis, why_not = basis_of(whole.ranks, most_steps=most_steps)
    return Case(whole, basis, why_not, goodput(run, ledgers, now_ns), counters)


def basis_of(ranks: Iterable[RankAccount], after: int = 0, most_steps: int = MOST_STEPS) -> tuple[Basis | None, str]:
    """-> (what is replayed, why there is none). ``after``: only steps that follow this one."""
    try:
        return Basis.of(trace_of([rank.newest for rank in ranks], after, most_steps)), ""
    except NoTrace as error:
        return None, str(error)
