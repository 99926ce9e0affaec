"""Splits from the ledgers the waits that the ranks had no time to exchange. Pure functions.

When a run ends, the waits of its last steps are still pending. If the ledgers of all ranks of a group can be read,
their rings still have each wait of those steps. This module then takes the minimum that the ranks would have exchanged.

The waits after the last step are split in the same way, as if they were in another step: often one rank saves the
model, and the others wait in a barrier.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from ..ledger.causes import own_time
from ..ledger.layout import SLOTS
from ..ledger.reader import Ledger, Slot
from ..ledger.waits import Settled, StepWaits, pack, split, width_for, words_of

Member = tuple[Ledger, Slot]
AFTERWARDS = 0.1
"""Only what a rank did before its last wait can have made it late, but the ledger does not tell this apart from what it
did afterwards. So the waits after the last step are split only if the time afterwards is less than this part of the
time before."""


def split_tails(newest: Iterable[Ledger]) -> dict[tuple[int, int], Settled]:
    """Splits the waits after the last step that is settled on every member: (rank, key of the group) -> the split.

    ``newest``: one ledger per rank, read with its steps.
    """
    groups: dict[int, list[Member]] = {}
    for ledger in newest:
        for slot in ledger.slots:
            if not slot.pairwise and slot.settled >= 0:
                groups.setdefault(slot.key, []).append((ledger, slot))
    found: dict[tuple[int, int], Settled] = {}
    for key, members in groups.items():
        if len(members) == members[0][1].size and len({ledger.attempt for ledger, _ in members}) == 1:
            for rank, settled in _split_group(members).items():
                found[rank, key] = settled
    return found


def _split_group(members: list[Member]) -> dict[int, Settled]:
    first = max(slot.settled for _, slot in members) + 1
    last = min(ledger.steps for ledger, _ in members)
    if _rest_can_be_split(members):
        last += 1
    first = max(first, *(ledger.first_whole_step for ledger, _ in members))
    if first > last:
        return {}
    steps = {ledger.rank: _steps_of(ledger, slot, first, last) for ledger, slot in members}
    if any(len(own) != last - first + 1 for own in steps.values()):
        return {}
    width = width_for(max(len(step.calls) for own in steps.values() for step in own))
    length = last - first + 1
    words = []
    for rank, own in steps.items():
        words.append(array("q", bytes(8 * words_of(length, width))))
        pack(words[-1], rank, own, length, width)
    least = [min(of_all) for of_all in zip(*words, strict=True)]
    accelerator = any(ledger.device != "cpu" for ledger, _ in members)
    ranks = sorted(steps)
    return {rank: split(least, rank, ranks, own, length, width, accelerator=accelerator) for rank, own in steps.items()}


def _rest_can_be_split(members: list[Member]) -> bool:
    before = afterwards = 0
    for ledger, slot in members:
        number = ledger.steps + 1
        calls = [call for call in ledger.calls if call.step == number]
        mine = [place for place, call in enumerate(calls) if call.slot == slot.index]
        if ledger.rest is None or ledger.steps != members[0][0].steps or not mine:
            return False
        mine_before = sum(call.gap_ns for call in calls[: mine[-1] + 1])
        before = max(before, mine_before)
        afterwards = max(afterwards, sum(own_time(ledger.rest.causes)) - mine_before)
    return afterwards < AFTERWARDS * before


def _steps_of(ledger: Ledger, slot: Slot, first: int, last: int) -> list[StepWaits]:
    calls: dict[int, list[list[int]]] = {number: [[] for _ in range(SLOTS)] for number in range(first, last + 1)}
    for call in ledger.calls:
        if call.step in calls:
            calls[call.step][call.slot].append(call.ns)
    found = []
    steps = [*ledger.ring, ledger.rest] if ledger.rest else ledger.ring
    for step in steps:
        number = step.number - ledger.base_step
        if first <= number <= last:
            elsewhere = [sum(waits) for waits in calls[number]]
            elsewhere[slot.index] = 0
            for other in ledger.slots:
                if other.size >= slot.size and not other.pairwise:
                    elsewhere[other.index] = 0  # a wait there delays all ranks of this group by the same time
            waits = calls[number][slot.index]
            found.append(StepWaits(number, step.wall_ns, waits, own_time(step.causes), elsewhere, [-1] * len(waits)))
    return found
