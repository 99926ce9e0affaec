"""Splits from the ledgers the waits that the ranks had no time to exchange. Pure functions.

When a run ends, the waits of its last steps are still pending. If the ledgers of all ranks of a group can be read,
their rings still have each wait of those steps. This module then takes the minimum that the ranks would have exchanged.

The waits after the last step that all ranks have taken are split in the same way, as if they were in one more step:
often one rank saves the model, and the others wait in a barrier. Or some ranks take longer for their steps, and the
others wait for them at the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from ..ledger.causes import LATE_FAMILIES, own_time
from ..ledger.layout import SLOTS, Call
from ..ledger.reader import Ledger, Slot, Step
from ..ledger.waits import Settled, StepWaits, pack, split, width_for, words_of
from .hang import failed_wait
from .operations import differ

Member = tuple[Ledger, Slot]
AFTERWARDS = 0.1
"""Only what a rank did before its last wait can have made it late, but the ledger does not tell this apart from what it
did afterwards. So the reason why a rank was late for the waits after the last step is known only if the time afterwards
is less than this part of the time before."""
_NETWORK = LATE_FAMILIES.index("network")


class Tail(NamedTuple):
    """How the last waits of one rank in a group were split."""

    settled: Settled
    unexplained: int = 0
    """How late the rank was for an unknown reason, ns."""


def split_tails(newest: Iterable[Ledger]) -> dict[tuple[int, int], list[Tail]]:
    """Splits the waits after the last step that is settled on every member: (rank, key of the group) -> the splits.

    ``newest``: one ledger per rank, read with its steps.
    """
    groups: dict[int, list[Member]] = {}
    for ledger in newest:
        for slot in ledger.slots:
            if not slot.pairwise and slot.settled >= 0:
                groups.setdefault(slot.key, []).append((ledger, slot))
    found: dict[tuple[int, int], list[Tail]] = {}
    for key, members in groups.items():
        if len(members) == members[0][1].size and len({ledger.attempt for ledger, _ in members}) == 1:
            for tails in (_split_steps(members), _split_rest(members)):
                for rank, tail in tails.items():
                    found.setdefault((rank, key), []).append(tail)
    return found


def _split_steps(members: list[Member]) -> dict[int, Tail]:
    """Splits the last steps that all members have taken."""
    first = max(slot.settled for _, slot in members) + 1
    first = max(first, *(ledger.first_whole_step for ledger, _ in members))
    last = min(ledger.steps for ledger, _ in members)
    if first > last:
        return {}
    steps = {ledger.rank: _steps_of(ledger, slot, first, last) for ledger, slot in members}
    if any(len(own) != last - first + 1 for own in steps.values()):
        return {}
    return {rank: Tail(settled) for rank, settled in _split(members, steps).items()}


def _split(members: list[Member], steps: dict[int, list[StepWaits]]) -> dict[int, Settled]:
    length = len(next(iter(steps.values())))
    width = width_for(max(len(step.calls) for own in steps.values() for step in own))
    words = []
    for rank, own in steps.items():
        words.append(array("q", bytes(8 * words_of(length, width))))
        pack(words[-1], rank, own, length, width)
    least = [min(of_all) for of_all in zip(*words, strict=True)]
    accelerator = any(ledger.device != "cpu" for ledger, _ in members)
    ranks = sorted(steps)
    return {rank: split(least, rank, ranks, own, length, width, accelerator=accelerator) for rank, own in steps.items()}


def _split_rest(members: list[Member]) -> dict[int, Tail]:
    """Splits the waits after the last step that all members have taken, if all members have made the same calls.

    The members then wait for what they did since they last met in this group, which may be long ago.
    """
    common = min(ledger.steps for ledger, _ in members)
    calls = {
        ledger.rank: [call for call in ledger.calls if call.slot == slot.index and call.step > common]
        for ledger, slot in members
    }
    same = len({slot.calls for _, slot in members}) == 1 and len({len(own) for own in calls.values()}) == 1
    ended = all(ledger.rest is not None and ledger.first_whole_step <= common + 1 for ledger, _ in members)
    settled = any(slot.settled > common for _, slot in members)
    if not same or settled or not ended or not any(calls.values()) or differ([slot for _, slot in members]):
        return {}
    if all(failed_wait(ledger) == slot.index for ledger, slot in members):
        return {}  # the last call has not ended, and nothing tells why
    met = max(max((call.step for call in _before(ledger, slot, common)), default=0) for ledger, slot in members)
    since = max(met, *(ledger.first_whole_step - 1 for ledger, _ in members))
    known = met > 0 or since == 0
    before = afterwards = 0
    steps: dict[int, list[StepWaits]] = {}
    for ledger, slot in members:
        mine = calls[ledger.rank]
        parts = [step for step in _all_steps(ledger) if step.number - ledger.base_step > since]
        own = [sum(part) for part in zip(*(own_time(step.causes) for step in parts), strict=True)]
        then = _after(ledger, mine[-1])
        before, afterwards = max(before, sum(own) - then), max(afterwards, then)
        elsewhere = _elsewhere(ledger, slot, since)
        wall = sum(step.wall_ns for step in parts)
        waits = [call.ns for call in mine]
        steps[ledger.rank] = [StepWaits(common + 1, wall, waits, own, elsewhere, [-1] * len(waits))]
    known = known and afterwards < AFTERWARDS * before
    return {rank: _explained(settled, known) for rank, settled in _split(members, steps).items()}


def _explained(settled: Settled, known: bool) -> Tail:
    """``known``: whether the ranks' own time says why they were late."""
    # On a CPU rank, `split` puts what no excess of its own time explains under network. That is right within a step.
    unknown = (_NETWORK,) if known else range(len(settled.late))
    unexplained = 0
    for index in unknown:
        unexplained += settled.late[index]
        settled.late[index] = 0
    return Tail(settled, unexplained)


def _before(ledger: Ledger, slot: Slot, common: int) -> list[Call]:
    return [call for call in ledger.calls if call.slot == slot.index and call.step <= common]


def _all_steps(ledger: Ledger) -> list[Step]:
    return [*ledger.ring, ledger.rest] if ledger.rest else ledger.ring


def _after(ledger: Ledger, last: Call) -> int:
    """The rank's own time after a wait, ns. Without the rest of that wait's step, except after the last step."""
    number = last.step + ledger.base_step
    later = sum(sum(own_time(step.causes)) for step in _all_steps(ledger) if step.number > number)
    if last.step <= ledger.steps or ledger.rest is None:
        return later
    calls = [call for call in ledger.calls if call.step == last.step]
    return sum(own_time(ledger.rest.causes)) - sum(call.gap_ns for call in calls[: calls.index(last) + 1])


def _elsewhere(ledger: Ledger, slot: Slot, since: int) -> list[int]:
    """The waits of a rank in its other groups after step ``since``, ns per slot."""
    spent = [0] * SLOTS
    for call in ledger.calls:
        if call.step > since:
            spent[call.slot] += call.ns
    return _without_outer(ledger, slot, spent)


def _without_outer(ledger: Ledger, slot: Slot, spent: list[int]) -> list[int]:
    spent[slot.index] = 0
    for other in ledger.slots:
        if other.size >= slot.size and not other.pairwise:
            spent[other.index] = 0  # a wait there delays all ranks of this group by the same time
    return spent


def _steps_of(ledger: Ledger, slot: Slot, first: int, last: int) -> list[StepWaits]:
    calls: dict[int, list[list[int]]] = {number: [[] for _ in range(SLOTS)] for number in range(first, last + 1)}
    for call in ledger.calls:
        if call.step in calls:
            calls[call.step][call.slot].append(call.ns)
    found = []
    for step in ledger.ring:
        number = step.number - ledger.base_step
        if first <= number <= last:
            elsewhere = _without_outer(ledger, slot, [sum(waits) for waits in calls[number]])
            waits = calls[number][slot.index]
            found.append(StepWaits(number, step.wall_ns, waits, own_time(step.causes), elsewhere, [-1] * len(waits)))
    return found
