"""The last steps of a run, as a sample in the report, so that runs can be compared. Pure functions.

A ledger's ring gives the last 511 steps of its process. The sample has the steps that are in the rings of all ranks;
their seconds are means over the ranks. The first step of a process is left out, because connections are made and graphs
are compiled in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..ledger.cause_rows import CAUSE_ROWS
from ..ledger.causes import CAUSE, CAUSE_FAMILY, CAUSES, FAMILIES, WAIT_CAUSES
from ..ledger.layout import RING_CALLS
from ..ledger.reader import Ledger, Step

DATA: tuple[str, ...] = tuple(row.name for row in CAUSE_ROWS if row.place == "data")
"""The causes that are waits for a batch."""
SAVING: tuple[str, ...] = ("checkpoint_write", "checkpoint_cpu")
SPLIT_RANKS = 128
"""With more ranks, waits are not split step by step, because that would take seconds."""
DIGITS = 7
"""Decimal places of seconds in JSON."""

_COLLECTIVE = CAUSE["collective"]
_DATA = [CAUSE[cause] for cause in DATA]
_SAVING = [CAUSE[cause] for cause in SAVING]
_OWN: dict[str, list[int]] = {
    family: [CAUSE[cause] for cause in CAUSES if CAUSE_FAMILY[cause] == family and cause not in WAIT_CAUSES]
    for family in FAMILIES
}
WAIT_FAMILIES: tuple[str, ...] = ("network", "straggler", "pipeline", "communication")
WAITED = "waited"
"""The key in `families` for all waits for other ranks, if they are not split step by step."""

Split = dict[str, float]


def recent(newest: Sequence[Ledger]) -> dict[str, object] | None:
    """Builds the sample; None if the ranks have no step in common.

    ``newest``: the last ledger of each rank, read with its steps. The lists have one number per step. `step_seconds`
    and `families` are means over the ranks, and the families add up to the step. `data_wait_seconds` is the mean of the
    ranks' waits for batches. `longest_data_wait_seconds` and `save_seconds` are the largest of any rank in the step.
    """
    common = _common(newest)
    if not common:
        return None
    rings = {ledger.rank: _by_number(ledger) for ledger in newest}
    rows = [[rings[ledger.rank][number] for ledger in newest] for number in common]
    count = len(newest)

    totals = [[sum(spent) for spent in zip(*(step.causes for step in row), strict=True)] for row in rows]

    def mean(at: Sequence[int]) -> list[float]:
        return [_seconds(sum(total[cause] for cause in at) / count) for total in totals]

    def most(at: Sequence[int]) -> list[float]:
        return [_seconds(max(_sum(step, at) for step in row)) for row in rows]

    families = {family: mean(at) for family, at in _OWN.items() if at}
    splits = _splits(newest, common) if count <= SPLIT_RANKS else None
    if splits is None:
        families[WAITED] = mean([_COLLECTIVE])
    else:
        for family in WAIT_FAMILIES:
            families[family] = [_seconds(split[family] / count) for split in splits]
    return {
        "first_step": common[0],
        "last_step": common[-1],
        "step_seconds": [_seconds(sum(step.wall_ns for step in row) / count) for row in rows],
        "families": {family: series for family, series in families.items() if any(series)},
        "data_wait_seconds": mean(_DATA),
        "longest_data_wait_seconds": most(_DATA),
        "save_seconds": most(_SAVING),
    }


def first_batch(newest: Sequence[Ledger]) -> float | None:
    """Seconds of the longest wait of any rank for its first batch; None unless all rings still have that step."""
    first = [ledger.ring[0] for ledger in newest if ledger.ring and ledger.ring[0].number == ledger.base_step + 1]
    return max(_sum(step, _DATA) for step in first) / 1e9 if len(first) == len(newest) and first else None


def _seconds(ns: float) -> float:
    return round(ns / 1e9, DIGITS)


def _sum(step: Step, causes: Sequence[int]) -> int:
    return sum([step.causes[cause] for cause in causes])


def _by_number(ledger: Ledger) -> dict[int, Step]:
    return {step.number: step for step in ledger.ring if step.number > ledger.base_step + 1}


def _common(newest: Sequence[Ledger]) -> list[int]:
    if len({ledger.attempt for ledger in newest}) != 1:
        return []
    numbers = set.intersection(*({*_by_number(ledger)} for ledger in newest))
    return sorted(numbers)


def _splits(newest: Sequence[Ledger], numbers: Sequence[int]) -> list[Split] | None:
    """The waits of all ranks in each step, as ns by family; None if that is not known for all steps.

    Waits in collectives are split for each call, as in ledger/waits.py. All waits for messages count as `pipeline`.
    """
    slots = [slot for ledger in newest for slot in ledger.slots]
    members = Counter(slot.key for slot in slots)
    whole = {slot.key for slot in slots if members[slot.key] == slot.size}
    calls = {ledger.rank: _calls(ledger) for ledger in newest}
    if any(_first_complete(ledger) > numbers[0] - ledger.base_step for ledger in newest):
        return None
    waited = {ledger.rank: _by_number(ledger) for ledger in newest}
    found = []
    for number in numbers:
        split: Split = dict.fromkeys(WAIT_FAMILIES, 0.0)
        groups: dict[int, list[list[int]]] = {}
        for ledger in newest:
            rest = waited[ledger.rank][number].causes[_COLLECTIVE]
            for key, pairwise, waits in calls[ledger.rank].get(number - ledger.base_step, {}).values():
                if pairwise:
                    split["pipeline"] += sum(waits)
                elif key in whole:
                    groups.setdefault(key, []).append(waits)
                else:
                    continue
                rest -= sum(waits)
            split["communication"] += rest
        for group in groups.values():
            for family, ns in _told_apart(group):
                split[family] += ns
        found.append(split)
    return found


def _told_apart(members: Sequence[Sequence[int]]) -> Iterator[tuple[str, int]]:
    """Splits the waits of a group's ranks in one step: (family, ns)."""
    if len({len(waits) for waits in members}) > 1:
        yield "communication", sum(map(sum, members))
        return
    for waits in zip(*members, strict=True):
        transfer = len(waits) * min(waits)
        yield "network", transfer
        yield "straggler", sum(waits) - transfer


def _first_complete(ledger: Ledger) -> int:
    """The first step (counted in its process) that is complete in the ring of calls."""
    return ledger.calls[0].step + 1 if ledger.calls_written > RING_CALLS and ledger.calls else 0


def _calls(ledger: Ledger) -> dict[int, dict[int, tuple[int, bool, list[int]]]]:
    """Step -> slot -> (key of the group, whether it is pairwise, waits in order)."""
    slots = {slot.index: slot for slot in ledger.slots}
    found: dict[int, dict[int, tuple[int, bool, list[int]]]] = {}
    for call in ledger.calls:
        if slot := slots.get(call.slot):
            group = found.setdefault(call.step, {}).setdefault(call.slot, (slot.key, slot.pairwise, []))
            group[2].append(call.ns)
    return found
