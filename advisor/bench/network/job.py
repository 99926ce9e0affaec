"""What a run hands to its collectives, and how fast they are, from its ledgers. Pure functions.

Ledgers count bytes by group and operation, but calls by operation alone and waits by group alone. So the size of a call
is known where an operation is used in one group, or where a group uses one operation; and how fast a run's transfers
are is known of a group's operations together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from ....ledger.causes import COLLECTIVE_OPS
from ....ledger.reader import Ledger, Slot
from .operations import FACTORS

MOST_UNSPLIT = 0.05
"""Of the waits of a group: with more of them unsplit, no speed of its transfers is given."""


@dataclass(frozen=True)
class Use:
    """An operation in a group. Bytes of one rank."""

    op: str
    step_bytes: float
    call_bytes: float | None
    """On average; None where that cannot be told."""


@dataclass(frozen=True)
class JobGroup:
    """All groups of one label."""

    label: str
    size: int
    members: tuple[tuple[int, ...], ...]
    """The ranks of each group, as far as they have ledgers here."""
    uses: tuple[Use, ...]
    waited: float
    """Seconds of a step and rank in which a transfer was waited for, on average."""
    unsplit: float
    """The share of waits of which nobody knows what they were."""

    @property
    def complete(self) -> bool:
        """Whether every member has a ledger here."""
        return all(len(ranks) == self.size for ranks in self.members)

    def busbw(self) -> float | None:
        """bytes/s of the transfers while they were waited for. None where waits are not split, or there are none.

        Transfers behind compute are not waited for: with them, this is more than the links ever carry.
        """
        if self.unsplit > MOST_UNSPLIT or not self.waited:
            return None
        return sum(use.step_bytes * FACTORS[use.op](self.size) for use in self.uses) / self.waited


class Record(NamedTuple):
    """What one rank did in one group: plain values, which nodes can tell each other."""

    rank: int
    world_size: int
    label: str
    key: int
    size: int
    step_bytes: dict[str, float]
    """By operation."""
    call_bytes: dict[str, float]
    """By operation, on average, where that can be told."""
    waited: float
    """Seconds of a step in which a transfer was waited for."""
    unknown_ns: int
    """Waits of which nobody knows what they were ..."""
    all_ns: int
    """... and all waits."""


def records_of(ledgers: Sequence[Ledger]) -> list[Record]:
    """The groups of each rank that use collectives we measure. Ranks that have finished no step are left out.

    ``ledgers``: of each rank the newest attempt.
    """
    found: list[Record] = []
    for ledger in ledgers:
        for slot in ledger.slots:
            used = {op: size for op, size in slot.bytes.items() if op in FACTORS}
            if not ledger.steps or slot.pairwise or slot.size < 2 or not used:
                continue
            calls = {op: number for op in used if (number := _calls(ledger, slot, op))}
            found.append(
                Record(
                    rank=ledger.rank,
                    world_size=ledger.world_size,
                    label=slot.label,
                    key=slot.key,
                    size=slot.size,
                    step_bytes={op: size / ledger.steps for op, size in used.items()},
                    call_bytes={op: used[op] / number for op, number in calls.items()},
                    waited=(slot.network + slot.queue) / ledger.steps / 1e9,
                    unknown_ns=slot.unsplit + slot.pending,
                    all_ns=slot.waited,
                )
            )
    return found


def groups_of(records: Sequence[Record]) -> list[JobGroup]:
    """Those with most bytes first."""
    found: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        found.setdefault((record.label, record.size), []).append(record)
    groups = [_group(label, size, seen) for (label, size), seen in found.items()]
    return sorted(groups, key=lambda group: -sum(use.step_bytes for use in group.uses))


def _group(label: str, size: int, seen: Sequence[Record]) -> JobGroup:
    members: dict[int, list[int]] = {}
    for record in seen:
        members.setdefault(record.key, []).append(record.rank)
    ops = dict.fromkeys(op for record in seen for op in record.step_bytes)
    uses = [
        Use(
            op,
            fmean(record.step_bytes.get(op, 0.0) for record in seen),
            _mean([record.call_bytes[op] for record in seen if op in record.call_bytes]),
        )
        for op in ops
    ]
    everything = sum(record.all_ns for record in seen)
    return JobGroup(
        label=label,
        size=size,
        members=tuple(sorted(tuple(sorted(ranks)) for ranks in members.values())),
        uses=tuple(sorted(uses, key=lambda use: -use.step_bytes)),
        waited=fmean(record.waited for record in seen),
        unsplit=sum(record.unknown_ns for record in seen) / everything if everything else 0.0,
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _calls(ledger: Ledger, slot: Slot, op: str) -> int | None:
    if sum(op in other.bytes for other in ledger.slots) == 1:
        return ledger.words["collective_calls"][COLLECTIVE_OPS.index(op)] or None
    return slot.calls or None if len(slot.bytes) == 1 else None


def sizes_of(groups: Sequence[JobGroup], bucket: int, most: int) -> dict[str, list[int]]:
    """Operation -> the sizes of its calls, smallest first.

    DDP's reducer sends the gradients of a backward pass, which a ledger counts as one call, in buckets: an all-reduce
    that is larger than ``bucket`` is taken to be of that size. No size is larger than ``most``.
    """
    sizes: dict[str, set[int]] = {}
    for group in groups:
        for use in group.uses:
            if use.call_bytes:
                size = min(use.call_bytes, bucket) if use.op == "all_reduce" else use.call_bytes
                sizes.setdefault(use.op, set()).add(round(min(size, most)))
    return {op: sorted(found) for op, found in sizes.items()}


def step_seconds(group: JobGroup, busbw: dict[str, float]) -> float | None:
    """What the transfers of a step take at these busbw, by operation; None where one of them is missing."""
    if any(use.op not in busbw for use in group.uses):
        return None
    return sum(use.step_bytes * FACTORS[use.op](group.size) / busbw[use.op] for use in group.uses)
