"""A simulated run as in the rings of its ledgers, for what-if.

A step in a ledger ends with the optimizer's step. The pause after it, which ends a simulated step, is in the next one.
"""

from __future__ import annotations

from whyidle.advisor.whatif.trace import RankStep, RankTrace, Trace
from whyidle.ledger.causes import CAUSE, CAUSES
from whyidle.ledger.layout import Call
from whyidle.ledger.reader import Slot
from whyidle.verdict.lookthrough import Group

from .case import HOST
from .replay import Replay, Wait

OWN = tuple(CAUSE[cause] for cause in ("compute", "data_read", "data_cpu", "host", "unattributed"))
"""Of FAMILIES."""


def trace_of(run: Replay) -> Trace:
    keys: dict[Group, int] = {}
    return Trace(tuple(_rank(run, rank, keys) for rank in range(run.case.ranks)), 0, False)


def slot(index: int, name: str, key: int, size: int, *, pairwise: bool = False, queue: int = 0) -> Slot:
    return Slot(index, name, key, size, pairwise, 0, 0, 0, 100, 0, 0, 0, None, queue, 0, {}, 0, {}, {}, {})


def _rank(run: Replay, rank: int, keys: dict[Group, int]) -> RankTrace:
    slots: dict[Group, int] = {}
    steps, now = [], 0
    before: list[tuple[int, int] | Wait] = []
    for number, step in enumerate(run.steps[rank], 1):
        events = [*before, *step.events]
        before = [events.pop()]
        assert not isinstance(before[0], Wait)
        assert before[0][0] == HOST
        own, calls, start, gap = [0] * len(CAUSES), [], now, 0
        for event in events:
            if not isinstance(event, Wait):
                own[OWN[event[0]]] += event[1]
                now, gap = now + event[1], gap + event[1]
                continue
            place = slots.setdefault(event.group, len(slots))
            if event.message is None:
                calls.append(Call(number, place, event.ns, gap))
            else:
                assert event.peer is not None
                sent = event.message.source == rank
                calls.append(Call(number, place, event.ns, gap, event.peer, sent, now - event.issued))
            now, gap = now + event.ns, 0
        steps.append(RankStep(number, now, now - start, tuple(own), 0, tuple(calls)))
    found = {
        place: slot(place, group.name, keys.setdefault(group, len(keys) + 1), len(group.ranks), pairwise=group.p2p)
        for group, place in slots.items()
    }
    return RankTrace(rank, "boot", found, 0, tuple(steps))
