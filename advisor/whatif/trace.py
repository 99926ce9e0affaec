"""The recorded steps of a run: for each rank and step its own time and its waits, in order, from the rings of ledgers.

A ring has the last steps and their last waits. Only steps that all ranks still have are used. ledger/reader.py converts
the clocks of ranks on this machine to the reader's clock. For ranks on other machines, messages.py compares the clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ...ledger.causes import CAUSE, WAIT_CAUSES
from ...ledger.layout import Call
from ...ledger.reader import Ledger, Slot
from ...verdict.chain import conclusion_of
from ...verdict.mounts import UNKNOWN, Part, floors
from ...verdict.sampled import is_sampled, moved_from
from ...verdict.workers import exhausted

if TYPE_CHECKING:
    from ...verdict.accounts import RankAccount, RunAccount

_COLLECTIVE, _HOST = CAUSE["collective"], CAUSE["host"]
_SURE = 2.0
"""Bounds include this number of standard errors of the looks at devices."""
_WAITS = tuple(CAUSE[cause] for cause in WAIT_CAUSES)


MOST_STEPS, LEAST_STEPS = 32_768, 64
"""The most steps of all ranks together that are replayed, so that a table takes ten seconds; and the steps of the run
that are replayed in any case."""


class NoTrace(ValueError):
    """The steps of a run cannot be replayed. The message is a sentence that says why."""


class RankStep(NamedTuple):
    """One step of one rank. Times in ns."""

    number: int
    """The number of the step in this process, from 1."""
    end: int
    wall: int
    own: tuple[int, ...]
    """Own time by cause, in the order of CAUSES; 0 for waits."""
    unsplit: int
    """Waits without a call in the ring: their group is not known, or they were not held back for a split."""
    calls: tuple[Call, ...]
    first: int = 0
    """The part of the wait for data that was the first for a worker after `__iter__`: nothing is prefetched then."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The steps of a rank, in order. All ranks of a trace have the same steps."""

    rank: int
    boot: str
    """The boot ID of the machine that its clock belongs to."""
    slots: dict[int, Slot]
    """Index of a slot -> the group of its calls."""
    workers: int
    """The processes that make its batches; 0 if the loop makes them, -1 if not known. Without those that had no samples
    left."""
    steps: tuple[RankStep, ...]
    starts: float = 0.0
    """How often it began to iterate over its loader, per step: a loader that does not keep its workers starts them."""
    worker_start: float | None = None
    """How long the loop waited for the start of one worker, in ns. None: not known, as for loops without workers."""
    reads: tuple[Part, ...] = UNKNOWN
    """The parts of its reads for batches: how much shorter more workers can make them."""
    steps_per_batch: int = 1
    """More than 1 if the loop makes several steps with each batch."""
    prefetched: int = 0
    """How many batches each worker makes ahead; 0: not known."""

    def queued(self, slot: int) -> float:
        """The share of the transfers in a group in which the rank's own threads got no CPU."""
        of = self.slots[slot]
        return of.queue / (of.queue + of.network) if of.queue + of.network else 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of all ranks of a run."""

    ranks: tuple[RankTrace, ...]
    left_out: int
    """The number of steps that are left out, because the calls of the ranks do not match."""
    accelerated: bool
    """Whether any rank has an accelerator."""
    unsure: float = 0.0
    """The share of the time that may be compute or `host` by the error of looks: of the rank with the largest one."""
    late_ends: float = 0.0
    """The share of the time for which ranks waited for ranks on which a transfer had ended later. A replay takes the
    shortest wait of any rank as the transfer, and does not know it."""
    own_saves: bool = False
    """Whether looks found most of the time of the saves: the loop saves in its own way."""

    @property
    def walls(self) -> list[float]:
        """The wall time of each step, as the mean over the ranks, ns."""
        return [
            sum(step.wall for step in steps) / len(steps)
            for steps in zip(*(one.steps for one in self.ranks), strict=True)
        ]


def trace_of(newest: Sequence[Ledger], after: int = 0, most_steps: int = MOST_STEPS) -> Trace:
    """The trace of a run. Raises NoTrace.

    ``newest``: the ledger of each rank's last attempt, read with its steps. ``after``: take only steps after this one,
    counted from 1. ``most_steps``: the most steps to take, of all ranks together.
    """
    _check_ranks(newest)
    slots = _slots(newest)
    first = max(_first_step(ledger) for ledger in newest)
    last = min(ledger.steps for ledger in newest)
    first = max(first, after + 1, last - max(LEAST_STEPS, most_steps // len(newest)) + 1)
    if not last:
        raise NoTrace("no rank has finished a step yet: try again later")
    if first > last:
        raise NoTrace("the ledgers of the ranks have no step in common: a rank is far behind, or has just restarted")
    steps = {ledger.rank: _steps(ledger, slots[ledger.rank], first, last) for ledger in newest}
    kept = [index for index in range(last - first + 1) if _match(index, newest, slots, steps)]
    if not kept:
        raise NoTrace(
            f"none of the last {last - first + 1} steps can be replayed: the ranks waited in different numbers of calls"
        )
    reads = floors(newest)
    ranks = tuple(
        RankTrace(
            ledger.rank,
            ledger.strings["boot"],
            slots[ledger.rank],
            ledger.loader_workers - exhausted(ledger),
            tuple(steps[ledger.rank][index] for index in kept),
            ledger.words["loader_starts"][0] / max(1, ledger.steps),
            _worker_start(ledger),
            reads.get(ledger.rank, UNKNOWN),
            max(1, round(ledger.steps / ledger.batches)) if ledger.batches else 1,
            ledger.words["loader_prefetch"][0],
        )
        for ledger in sorted(newest, key=lambda one: one.rank)
    )
    return Trace(ranks, last - first + 1 - len(kept), any(ledger.device != "cpu" for ledger in newest))


def _worker_start(ledger: Ledger) -> float | None:
    started = ledger.words["loader_starts"][1] * max(0, ledger.loader_workers)
    return ledger.cause_ns["data_start"] / started if started else None


def _check_ranks(newest: Sequence[Ledger]) -> None:
    world = max(ledger.world_size for ledger in newest)
    missing = sorted({*range(world)} - {ledger.rank for ledger in newest})
    if missing:
        shown = ", ".join(map(str, missing[:4])) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise NoTrace(
            f"{len(missing)} of {world} ranks have no ledger here ({shown}): a replay needs the ledgers of all ranks. "
            "Copy them into one directory and give it with --dir"
        )
    if len({ledger.attempt for ledger in newest}) > 1:
        raise NoTrace("the ranks are in different attempts of the run: try again when all have finished a step")


def _slots(newest: Sequence[Ledger]) -> dict[int, dict[int, Slot]]:
    """Rank -> its groups, by the index of their slot, if every member of the group has a ledger here."""
    members: dict[int, int] = {}
    for ledger in newest:
        for slot in ledger.slots:
            members[slot.key] = members.get(slot.key, 0) + 1
    return {
        ledger.rank: {slot.index: slot for slot in ledger.slots if members[slot.key] == slot.size} for ledger in newest
    }


def _first_step(ledger: Ledger) -> int:
    """The first complete step in the rings. The first step of a process is left out: connections are made in it."""
    return max(2, ledger.first_whole_step) if ledger.steps > 1 else ledger.first_whole_step


def _steps(ledger: Ledger, slots: dict[int, Slot], first: int, last: int) -> list[RankStep]:
    calls: dict[int, list[Call]] = {}
    for call in ledger.calls:
        if call.slot in slots:
            calls.setdefault(call.step, []).append(call)
    found = []
    for step in ledger.ring:
        number = step.number - ledger.base_step
        if first <= number <= last:
            own = tuple(0 if cause in _WAITS else ns for cause, ns in enumerate(step.causes))
            mine = tuple(calls.get(number, ()))
            unsplit = max(0, step.causes[_COLLECTIVE] - sum(call.ns for call in mine))
            found.append(RankStep(number, step.end_ns, step.wall_ns, own, unsplit, mine, step.first_ns))
    if len(found) != last - first + 1:
        raise NoTrace(f"the ledger of rank {ledger.rank} has gaps: some of the steps {first} to {last} are missing")
    return found


def _match(
    index: int, newest: Sequence[Ledger], slots: dict[int, dict[int, Slot]], steps: dict[int, list[RankStep]]
) -> bool:
    """Whether the calls of a step match: all members of a group made the same number, and each message has two ends."""
    counts: dict[int, set[int]] = {}
    ends: dict[tuple[int, int], int] = {}
    for ledger in newest:
        rank = ledger.rank
        mine: dict[int, int] = dict.fromkeys((slot.key for slot in slots[rank].values() if not slot.pairwise), 0)
        for call in steps[rank][index].calls:
            slot = slots[rank][call.slot]
            if not slot.pairwise:
                mine[slot.key] += 1
                continue
            if call.peer < 0:
                return False
            way = (rank, call.peer) if call.sent else (call.peer, rank)
            ends[way] = ends.get(way, 0) + (1 if call.sent else -1)
        for key, count in mine.items():
            counts.setdefault(key, set()).add(count)
    return all(len(found) == 1 for found in counts.values()) and not any(ends.values())


def as_reported(trace: Trace, ranks: Iterable[RankAccount]) -> Trace:
    """With the seconds in each step that looks have moved to another cause: in each step the same share of a cause."""
    every = [*ranks]
    moved = {rank.rank: rank for rank in every if rank.moved or rank.worked or rank.gaps_of}
    return replace(
        trace,
        ranks=tuple(_moved(one, moved[one.rank]) if one.rank in moved else one for one in trace.ranks),
        unsure=max([_SURE * (rank.gaps_by.error or 0.0) / rank.wall for rank in every if rank.wall], default=0.0),
        own_saves=is_sampled(every, "checkpoint_write", "checkpoint_cpu"),
    )


def with_late_ends(trace: Trace, account: RunAccount) -> Trace:
    """The account may have the seconds of a window only, and groups those of the whole run: then late ends have the
    same part of the waits in the window."""
    waited = sum(rank.seconds["straggler"] for rank in account.ranks)
    whole = sum(group.straggler for rank in account.ranks for group in rank.groups.values())
    late = min(conclusion_of(account).late_ends * (min(1.0, waited / whole) if whole > 0 else 1.0), waited)
    return replace(trace, late_ends=late / account.rank_seconds if account.rank_seconds > 0 else 0.0)


def _moved(one: RankTrace, rank: RankAccount) -> RankTrace:
    """Gaps are a part of work in which the device's own work between two steps is included, so they are last."""
    worked, whole = rank.worked, {}
    for cause, seconds in rank.seconds.items():
        left = 1.0 - rank.gaps_of.get(cause, 0.0)
        before = seconds / left if left else seconds
        whole[cause] = before + moved_from(rank, cause)
    whole["compute"] -= worked
    whole["host"] += worked - (rank.gaps or 0.0)
    shares = [
        (CAUSE[of], CAUSE[to], min(1.0, spent / whole[of]))
        for (of, to), spent in {**rank.moved, ("host", "compute"): worked}.items()
        if spent > 0 and whole[of] > 0
    ]
    gaps = [(CAUSE[of], share) for of, share in rank.gaps_of.items()]
    steps = []
    for step in one.steps:
        own = [*step.own]
        for of, to, share in shares:
            ns = min(own[of], round(step.own[of] * share))
            own[of], own[to] = own[of] - ns, own[to] + ns
        for of, share in gaps:
            ns = round(own[of] * share)
            own[of], own[_HOST] = own[of] - ns, own[_HOST] + ns
        steps.append(step._replace(own=tuple(own)))
    return replace(one, steps=tuple(steps))
