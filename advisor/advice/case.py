"""The input of the rules of advice: the account of a run, its replay, its attempts, and counters of its nodes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ...ledger.causes import CAUSE_FAMILY, COLLECTIVE_OPS
from ...ledger.dimensions import dimension_named
from ...ledger.directory import Run
from ...ledger.reader import Ledger
from ...verdict.accounts import NO_IDLE, RankAccount, RunAccount, Seconds, account
from ...verdict.case import look_through
from ...verdict.chain import conclusion_of
from ...verdict.enough import Limits, TooShort, too_short
from ...verdict.gaps import Idle
from ...verdict.given import Given
from ...verdict.mounts import Key
from ...verdict.verdict import verdict
from ..goodput import Goodput, goodput
from ..whatif.changes import Changes
from ..whatif.predict import Basis, Prediction, predict
from ..whatif.replay import saved
from ..whatif.trace import NoTrace, trace_of, with_late_ends

MOST_STEPS = 2048
"""The most steps, of all ranks together, that are replayed. Advice makes a dozen replays and must be quick."""


class Room(NamedTuple):
    """A mount of this node to which files could be moved. Sizes in bytes, rates in bytes/s, as a bench measured them;
    None: not measured."""

    point: str
    free: int
    read: float | None = None
    write: float | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """What is known about this node from other sources than ledgers.

    None or empty means not known. Rules that need the value then give no advice.
    """

    cpus: float | None = None
    """The CPUs that the ranks of this node may use together."""
    bytes_per_read: float | None = None
    """The mean number of bytes that a read of the ranks and their workers returns."""
    mtu: Mapping[str, int] = field(default_factory=dict)
    """Interface that carries the ranks' traffic over TCP -> its MTU, bytes."""
    rooms: Mapping[Key, Room] = field(default_factory=dict)
    """The mounts of which the free space is known."""


NOTHING = Counters()


@dataclass(frozen=True)
class Case:
    """One run, as the rules of advice see it."""

    account: RunAccount
    basis: Basis | None
    """The recorded steps. None if they cannot be replayed: `why_not` says why."""
    why_not: str
    goodput: Goodput | None
    """None if only one attempt is known, as in `signals`."""
    counters: Counters = NOTHING
    least: Limits | None = None
    """What the run needs for advice. None: the limits of the environment."""

    @property
    def ranks(self) -> list[RankAccount]:
        return self.account.ranks

    @property
    def window(self) -> float:
        """The seconds of all ranks together, each from its first step on."""
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

    @property
    def has_loader(self) -> bool:
        """Whether the loop takes batches from torch's DataLoader on some rank."""
        return any(rank.newest.loader_workers >= 0 for rank in self.ranks)

    @cached_property
    def verdict(self) -> Mapping[str, Any]:
        return verdict(self.account, self.least) or {}

    @cached_property
    def too_short(self) -> TooShort | None:
        return too_short(self.account, self.least)

    @cached_property
    def given(self) -> Given:
        return Given(self.account)

    @cached_property
    def charged(self) -> Seconds:
        """The seconds by family. Waits for late ranks are under what made those late."""
        return look_through(self.account)[0]

    def removable(self, families: Sequence[str], causes: Sequence[str] = ()) -> float:
        """The largest share of the window that a change can remove which only reduces these causes and families.

        It removes their time on all ranks, and the waits for ranks that they made late. The part of the causes in the
        waits that their family has caused is their part of the family on the rank that has most of it. Where n - 1
        ranks wait for the compute of one, that rank is quicker by the same time.
        """
        late = len(self.ranks) / max(1, len(self.ranks) - 1)
        measured, most = self.account.family_seconds(), 0.0
        for family in {*families, *(CAUSE_FAMILY[cause] for cause in causes)}:
            mine = [cause for cause in causes if CAUSE_FAMILY[cause] == family]
            if causes and not mine:
                continue
            worst = max(self.ranks, key=lambda rank: rank.family_seconds()[family])
            whole = worst.family_seconds()[family]
            part = sum(worst.seconds[cause] for cause in mine) / whole if mine and whole else 1.0
            own = self.seconds(*mine) if mine else measured[family]
            lost = own + part * max(0.0, self.charged[family] - measured[family])
            most += lost * (late if family in ("straggler", "pipeline") else 1.0)
        return min(1.0, most / self.window)

    @cached_property
    def take_turns(self) -> bool:
        """Whether different ranks are late in turns because of their own compute."""
        return conclusion_of(self.account).take_turns("straggler")

    def seconds(self, *causes: str) -> float:
        """The seconds in these causes, of all ranks together."""
        return sum(rank.seconds[cause] for rank in self.ranks for cause in causes)

    def share(self, *causes: str) -> float:
        """The share of the window in these causes."""
        return self.seconds(*causes) / self.window

    def a_step(self, word: str, index: int | None = None) -> float:
        """The mean of a counter of the ledger per rank and step. ``index``: only this one of its words."""
        counts = [rank.newest.words[word] for rank in self.ranks]
        steps = sum(rank.newest.steps for rank in self.ranks)
        found = sum(sum(each) if index is None else each[index] for each in counts)
        return found / steps if steps else 0.0

    def calls(self, op: str = "") -> float:
        """The mean number of collectives per rank and step, outside of evaluations, rollouts and loggers. ``op``: only
        of this operation."""
        index = COLLECTIVE_OPS.index(op) if op else None
        return self.a_step("collective_calls", index) - self.a_step("aside_calls", index)

    def workers(self) -> int | None:
        """The data workers of each rank. None if they are not known, or if the ranks have different numbers."""
        found = {rank.newest.loader_workers for rank in self.ranks}
        return found.pop() if len(found) == 1 and min(found) >= 0 else None

    def bytes(self, *ops: str, larger_than: float = 0, besides: Container[str] = ()) -> dict[str, float]:
        """The mean bytes per rank and step that are passed to collectives, by operation, without those of evaluations,
        rollouts and loggers. Without ``ops``, all operations. ``larger_than``: only in groups with more ranks than
        this. ``besides``: dimensions whose groups are left out."""
        steps = sum(rank.newest.steps for rank in self.ranks)
        found: dict[str, float] = {}
        for rank in self.ranks:
            for slot in rank.newest.slots:
                if slot.size <= larger_than or dimension_named(slot.label) in besides:
                    continue
                for op, size in slot.bytes.items():
                    if not ops or op in ops:
                        found[op] = found.get(op, 0.0) + size
        return {op: self._of_steps(op) * size / steps for op, size in found.items()} if steps else {}

    def _of_steps(self, op: str) -> float:
        """The part of the bytes of an operation that steps pass. Groups have it alike, as far as that is known."""
        index = COLLECTIVE_OPS.index(op)
        passed = self.a_step("collective_bytes", index)
        return 1 - min(1.0, self.a_step("aside_bytes", index) / passed) if passed else 1.0

    def saves(self, changes: Changes) -> float:
        """The share of a step that changes save, without bounds. 0 if the recorded steps do not show it."""
        try:
            return sum(saved(self.basis.trace, changes)) / sum(self.basis.walls) if self.basis else 0.0
        except NoTrace:
            return 0.0

    def predict(self, changes: Changes) -> Prediction | None:
        """What changes save, with bounds. None if the recorded steps do not show it."""
        try:
            return predict(self.basis, changes) if self.basis else None
        except NoTrace:
            return None


def case_of(
    run: Run,
    ledgers: Sequence[Ledger],
    now_ns: int,
    counters: Counters = NOTHING,
    idle: Mapping[int, Idle] = NO_IDLE,
    most_steps: int = MOST_STEPS,
    least: Limits | None = None,
) -> Case:
    """The case of a whole run. ``ledgers`` may be of any run, and must have been read with their steps.

    ``now_ns`` is CLOCK_MONOTONIC. ``idle`` and ``least``: see `build_report`.
    """
    whole = account(run, ledgers, now_ns, idle)
    basis, why_not = basis_of(whole, most_steps=most_steps)
    return Case(whole, basis, why_not, goodput(run, ledgers, now_ns), counters, least)


def basis_of(account: RunAccount, after: int = 0, most_steps: int = MOST_STEPS) -> tuple[Basis | None, str]:
    """Returns the steps to replay, or None and the reason. ``after``: take only steps after this one."""
    try:
        trace = trace_of([rank.newest for rank in account.ranks], after, most_steps)
        return Basis.of(with_late_ends(trace, account)), ""
    except NoTrace as error:
        return None, str(error)
