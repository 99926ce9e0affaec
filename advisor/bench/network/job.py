"""The collectives of a run: their sizes, and how fast its transfers are, from its ledgers. Pure functions.

Ledgers count bytes by group and operation, but calls only by operation, and waits only by group. So the size of a call
is known only if the operation is used in a single group, or if the group uses a single operation. The speed of
transfers is known only for all operations of a group together.
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
"""If a larger share of a group's waits is unsplit, the speed of its transfers is not given."""


@dataclass(frozen=True)
class Use:
    """An operation in a group. Bytes are those of one rank."""

    op: str
    step_bytes: float
    call_bytes: float | None
    """The mean bytes of a call; None if not known."""


@dataclass(frozen=True)
class JobGroup:
    """All groups with one label."""

    label: str
    size: int
    members: tuple[tuple[int, ...], ...]
    """The ranks of each group that have ledgers here."""
    uses: tuple[Use, ...]
    waited: float
    """The mean seconds per step and rank in which the rank waited for a transfer."""
    unsplit: float
    """The share of unsplit waits."""

    @property
    def complete(self) -> bool:
        """Whether every member has a ledger here."""
        return all(len(ranks) == self.size for ranks in self.members)

    def busbw(self) -> float | None:
        """The bytes/s of the transfers during the waits for them. None if there are no waits, or too many are unsplit.

        Compute hides a part of the transfers, and no rank waits for that part. So the result may exceed the rate of the
        links.
        """
        if self.unsplit > MOST_UNSPLIT or not self.waited:
            return None
        return sum(use.step_bytes * FACTORS[use.op](self.size) for use in self.uses) / self.waited


class Record(NamedTuple):
    """What one rank did in one group. The values are plain, so that nodes can send them to each other."""

    rank: int
    world_size: int
    label: str
    key: int
    size: int
    step_bytes: dict[str, float]
    """Operation -> bytes per step."""
    call_bytes: dict[str, float]
    """Operation -> mean bytes of a call, if known."""
    waited: float
    """The seconds per step in which the rank waited for a transfer."""
    unknown_ns: int
    """Unsplit waits."""
    all_ns: int
    """All waits."""


def records_of(ledgers: Sequence[Ledger]) -> list[Record]:
    """The groups of each rank that use collectives which the bench measures. Ranks without a finished step are left
    out.

    ``ledgers``: the newest attempt of each rank.
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
    """The groups of a run, by label and size. The group with the most bytes comes first."""
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
    """Operation -> the sizes of its calls in bytes, smallest first. No size is larger than ``most``.

    A ledger counts the gradients of a backward pass as one call, but DDP's reducer sends them in buckets. So an
    all-reduce that is larger than ``bucket`` counts as one of that size.
    """
    sizes: dict[str, set[int]] = {}
    for group in groups:
        for use in group.uses:
            if use.call_bytes:
                size = min(use.call_bytes, bucket) if use.op == "all_reduce" else use.call_bytes
                sizes.setdefault(use.op, set()).add(round(min(size, most)))
    return {op: sorted(found) for op, found in sizes.items()}


def step_seconds(group: JobGroup, busbw: dict[str, float]) -> float | None:
    """The seconds that the transfers of a step take at ``busbw`` (operation -> bytes/s). None if an operation is
    missing."""
    if any(use.op not in busbw for use in group.uses):
        return None
    return sum(use.step_bytes * FACTORS[use.op](group.size) / busbw[use.op] for use in group.uses)
