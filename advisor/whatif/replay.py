"""Replays the recorded steps with a change. Pure functions.

Each rank has a *shift*: how much earlier than recorded it is. A replay of shifts repeats the record exactly if nothing
is changed. A replay of times would not, because ranks leave a call microseconds apart.

* Own time: the time that the change removes is added to the shift (own.py).
* A collective ends when its last member has entered it, plus the transfer. The recorded transfer ``t`` is the shortest
  wait of any member, and ``t'`` is the new one. All members leave with the shift
  ``min over the members (own wait + own shift) - t'``. So all ranks benefit if the late rank becomes faster, and what
  other ranks save is spent waiting for it.
* A message is under way from the moment when both of its ends are issued and the previous message on the link has
  arrived (ledger/replay.py, of which this is the general case). If it took longer than `MOST_TRANSFERS` of the link's
  usual transfers, the rest has other reasons and does not change.
* Batch: the loop takes it when it asks for it, or when the loader has it. If the loop is as slow as the workers, the
  loader delivers as often as the workers finish a batch, so a faster step may have to wait for it.
* Workers that are added start at each `__iter__`, unless the loader keeps them. All steps share what that costs.
* On a CPU rank, a part of each transfer is time in which the rank's own threads got no CPU. `cpu` changes that part.

Assumptions: with a network k times faster a transfer takes 1/k of its time, so no part of it is latency or work of the
ranks. A rank arrives at a call when its wait for the call begins. Both can be wrong. On a CPU rank the transfer is
partly the rank's own work, which does not become faster if its threads queue for a CPU: `Changes.least` gives that
bound. If a transfer began behind compute, only its end is in the record, so a faster network hides more than predicted:
`Changes.most` gives that bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ...ledger.layout import Call
from .changes import Changes
from .loader import Batch
from .messages import Message, Place, Scale, meet
from .own import Own, owns_of, starting
from .trace import NoTrace, RankStep, RankTrace, Trace

ROUNDED = 2_000
"""ns: the ring has whole µs. Without this margin, a message might seem to be issued after the wait that followed it."""


class Take(NamedTuple):
    """A stretch of own time, of which ``ns`` are removed."""

    ns: float


class Meet(NamedTuple):
    """A collective. ``key``: (group, step, number of the call); ``wait``: the recorded wait, ns."""

    key: tuple[int, int, int]
    wait: int


class Issue(NamedTuple):
    """One end of a message is issued."""

    message: Message
    sent: bool


class Await(NamedTuple):
    """The recorded wait for some messages: when it began, and how long it took, ns."""

    messages: tuple[tuple[Message, bool], ...]
    begin: int
    wait: int


class End(NamedTuple):
    """The end of a step."""


Op = Take | Batch | Meet | Issue | Await | End


@dataclass(slots=True)
class _Rank:
    """The state of one rank in the replay. Shifts in ns."""

    program: list[Op]
    at: int = 0
    """The index of the next operation."""
    shift: float = 0.0
    loader: float = 0.0
    """The shift of its batches."""
    ends: list[float] = field(default_factory=list)
    """The shift at the end of each step."""


def saved(trace: Trace, changes: Changes) -> list[float]:
    """By how many ns each step becomes shorter, on average over the ranks. Raises NoTrace if the record is not
    consistent."""
    ranks = [_Rank(program) for program in _programs(trace, owns_of(trace, changes))]
    _run(trace, ranks, changes)
    before = [0.0] * len(ranks)
    longer = starting(trace, changes)
    found = []
    for index in range(len(trace.ranks[0].steps)):
        now = [rank.ends[index] for rank in ranks]
        found.append(sum(now) / len(now) - sum(before) / len(before) - longer)
        before = now
    return found


# -- what each rank does


def _programs(trace: Trace, owns: Sequence[Sequence[Own]]) -> list[list[Op]]:
    messages = meet(trace)
    return [
        [op for index, step in enumerate(one.steps) for op in _program(one, step, mine[index], messages)]
        for one, mine in zip(trace.ranks, owns, strict=True)
    ]


def _program(one: RankTrace, step: RankStep, own: Own, messages: Mapping[Place, tuple[Message, bool]]) -> list[Op]:
    events: list[tuple[int, int, float, Op]] = [(0, 0, own.before + own.data, own.batch)]
    pieces = [(0, 0.0)]  # (start of a stretch of own time, own time before it)
    now, done = 0, 0.0
    numbers: dict[int, int] = {}
    start = step.end - step.wall
    place = 0
    while place < len(step.calls):
        call = step.calls[place]
        slot = one.slots[call.slot]
        now, done = now + call.gap_ns, done + call.gap_ns
        batch = _batch_of(step.calls, place) if slot.pairwise else [call]
        if slot.pairwise:
            ends = tuple(messages[one.rank, step.number, place + offset] for offset in range(len(batch)))
            for (message, sent), each in zip(ends, batch, strict=True):
                at = max(0, now - each.lead_ns - (ROUNDED if each.lead_ns else 0))
                events.append((at, len(events), _own_at(pieces, at, done), Issue(message, sent)))
            events.append((now, len(events), done, Await(ends, start + now, call.ns)))
        else:
            number = numbers[slot.key] = numbers.get(slot.key, 0) + 1
            events.append((now, len(events), done, Meet((slot.key, step.number, number), call.ns)))
        now += call.ns
        pieces.append((now, done))
        place += len(batch)
    return _in_order(events, own)


def _in_order(events: list[tuple[int, int, float, Op]], own: Own) -> list[Op]:
    """The events, in the order of the own time before them, with a `Take` wherever own time is removed between two."""
    batch, *rest = events
    rest.sort(key=lambda event: (event[0], not isinstance(event[3], Issue), event[1]))
    program: list[Op] = []
    last = 0.0
    waiting: tuple[int, int, float, Op] | None = batch
    for event in [*rest, (0, 0, own.length, End())]:
        if waiting is not None and event[2] >= min(waiting[2], own.length):
            last = _take(program, own, last, waiting)
            waiting = None
        last = _take(program, own, last, event)
    return program


def _take(program: list[Op], own: Own, last: float, event: tuple[int, int, float, Op]) -> float:
    place = max(last, min(event[2], own.length))
    if isinstance(event[3], End):
        place = own.length
    if taken := own.saved(last, place):
        program.append(Take(taken))
    program.append(event[3])
    return place


def _batch_of(calls: Sequence[Call], place: int) -> Sequence[Call]:
    """The messages that share one wait. The first call has the wait."""
    end = place + 1
    while end < len(calls) and calls[end].together:
        end += 1
    return calls[place:end]


def _own_at(pieces: Sequence[tuple[int, float]], at: int, most: float) -> float:
    for began, before in reversed(pieces):
        if began <= at:
            return min(before + at - began, most)  # in the wait that follows, own time does not grow
        most = before
    return 0.0


# -- all ranks together


def _run(trace: Trace, ranks: list[_Rank], changes: Changes) -> None:
    sizes = {slot.key: slot.size for one in trace.ranks for slot in one.slots.values()}
    queued = _queued(trace)
    here: dict[tuple[int, int, int], dict[int, int]] = {}
    blocked: dict[Message, list[int]] = {}
    ready = list(range(len(ranks)))

    def transfer(key: int, ns: float) -> float:
        queue = queued[key]
        network = changes.network if key in (changes.groups or (key,)) else 1.0
        return ns * ((1 - queue) * network + queue * changes.cpu * (1 if changes.queued else network))

    while ready:
        place = ready.pop()
        rank = ranks[place]
        while rank.at < len(rank.program):
            op = rank.program[rank.at]
            if isinstance(op, Take):
                rank.shift += op.ns
            elif isinstance(op, Batch):
                _take_batch(rank, op)
            elif isinstance(op, End):
                rank.ends.append(rank.shift)
            elif isinstance(op, Issue):
                if op.message.issue(op.sent, rank.shift, partial(transfer, op.message.key)):
                    ready += blocked.pop(op.message, ())
            elif isinstance(op, Await):
                waits_for = next((message for message, sent in op.messages if not message.known(sent)), None)
                if waits_for is not None:
                    blocked.setdefault(waits_for, []).append(place)
                    break
                rank.shift = _leave(op, rank.shift, partial(transfer, op.messages[0][0].key))
            else:
                waiting = here.setdefault(op.key, {})
                waiting[place] = op.wait
                if len(waiting) < sizes[op.key[0]]:
                    break
                del here[op.key]
                shift = min(wait + ranks[other].shift for other, wait in waiting.items())
                shift -= transfer(op.key[0], min(waiting.values()))
                for other in waiting:
                    ranks[other].shift = shift
                    ranks[other].at += 1
                    if other != place:
                        ready.append(other)
                continue
            rank.at += 1
    if any(rank.at < len(rank.program) for rank in ranks):
        raise NoTrace("the calls of the ranks do not match: in the replay they block one another")


def _take_batch(rank: _Rank, batch: Batch) -> None:
    """Takes a batch, once the loop has asked for it and the loader has it."""
    if not batch.bound:
        rank.shift += batch.saved
        rank.loader = rank.shift
        return
    rank.loader = min(rank.loader + batch.lead, batch.wait + rank.shift + batch.ahead)
    if batch.wait:
        rank.shift = min(batch.wait + rank.shift, rank.loader)


def _leave(op: Await, shift: float, scale: Scale) -> float:
    """The shift of a rank when it leaves the wait for its messages."""
    before = max(op.begin, *(message.was_over(sent) for message, sent in op.messages))
    return before - max(op.begin - shift, *(message.over(sent, scale) for message, sent in op.messages))


def _queued(trace: Trace) -> dict[int, float]:
    """Group -> the share of its transfers in which the ranks' threads got no CPU."""
    shares: dict[int, list[float]] = {}
    for one in trace.ranks:
        for slot in one.slots.values():
            shares.setdefault(slot.key, []).append(one.queued(slot.index))
    return {key: sum(found) / len(found) for key, found in shares.items()}
