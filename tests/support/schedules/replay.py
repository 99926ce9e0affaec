"""Replays the programs of a case on a virtual clock. Ranks share no resources, so the order in which they are advanced
does not change any time: a rank runs until it reaches a call whose end is not known yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from whyidle.verdict.lookthrough import Group

from .case import FAMILIES, Case
from .programs import Batch, Collective, EndOfStep, Message, Op, Own, Programs

BUFFERED_SEND = 5_000
"""ns that a buffered send takes on its sender."""


@dataclass(slots=True)
class Wait:
    """One wait of one rank; times in ns of the virtual clock."""

    group: Group
    index: int  # the number of the call in the group (collectives), or of this rank's wait for this peer (messages)
    peer: int | None  # None in collectives
    ns: int
    transfer: int  # the part of the wait that was the transfer: the truth, which no rank knows
    issued: int
    end: int
    message: Message | None = None


@dataclass(slots=True)
class Step:
    """One step of one rank: its own time and its waits in the order in which they happened."""

    events: list[tuple[int, int] | Wait] = field(default_factory=list)  # (family, ns) or a wait
    end: int = 0


@dataclass(slots=True)
class Replay:
    case: Case
    steps: list[list[Step]]  # by rank
    slow_link: object = None

    def wall(self, rank: int) -> int:
        return self.steps[rank][-1].end

    @property
    def total(self) -> int:
        return sum(self.wall(rank) for rank in range(self.case.ranks))

    def own(self, rank: int, only: Step | None = None) -> list[int]:
        """ns of a rank's own time by family, in all steps or in one."""
        own = [0] * len(FAMILIES)
        for step in [only] if only else self.steps[rank]:
            for event in step.events:
                if not isinstance(event, Wait):
                    own[event[0]] += event[1]
        return own

    def waits(self, rank: int) -> list[Wait]:
        return [event for step in self.steps[rank] for event in step.events if isinstance(event, Wait)]

    def waited(self, rank: int) -> int:
        return sum(wait.ns for wait in self.waits(rank))


class _Rank:
    __slots__ = ("batch", "calls", "clock", "current", "program", "sent", "steps")

    def __init__(self, program):
        self.program = program
        self.clock = 0
        self.steps = [Step()]
        self.current = self.steps[0]
        self.calls: dict[Group, int] = {}
        self.sent: dict[int, int] = {}
        self.batch: Batch | None = None


def replay(case: Case) -> Replay:
    """Runs a case. Raises RuntimeError if its ranks block each other for ever."""
    programs = Programs(case)
    ranks = [_Rank(programs.of(rank)) for rank in range(case.ranks)]
    arrivals: dict[tuple[Group, int], dict[int, int]] = {}
    issued: dict[Message, dict[int, int]] = {}
    ready = deque(range(case.ranks))
    done = 0

    def enter(me: int, op: Collective) -> None:
        state = ranks[me]
        index = state.calls.get(op.group, 0)
        state.calls[op.group] = index + 1
        here = arrivals.setdefault((op.group, index), {})
        here[me] = state.clock
        if len(here) < len(op.group.ranks):
            return
        transfer = programs.transfer(op.group, index)
        end = max(here.values()) + transfer
        for rank, at in here.items():
            ranks[rank].current.events.append(Wait(op.group, index, None, end - at, transfer, at, end))
            ranks[rank].clock = end
            ready.append(rank)
        del arrivals[op.group, index]

    def issue(me: int, op: Batch) -> None:
        state = ranks[me]
        state.batch = op
        others = []
        for message in op.messages:
            ends = issued.setdefault(message, {})
            ends[me] = state.clock
            if len(ends) == 2:
                others.append(message.source if message.target == me else message.target)
        _settle(me)
        for other in others:
            if ranks[other].batch is not None:
                _settle(other)

    def _settle(me: int) -> None:
        """Ends the batch of a rank as soon as every end of it is known."""
        state = ranks[me]
        batch = state.batch
        assert batch is not None
        ends = []
        for message in batch.messages:
            at = issued[message]
            if case.buffered and message.source == me:
                ends.append(at[me] + BUFFERED_SEND)
            elif len(at) < 2:
                return
            elif case.buffered:
                ends.append(max(at[me], at[message.source] + programs.delivery(message)))
            else:
                ends.append(max(at.values()) + programs.delivery(message))
        state.batch = None
        for message, end in zip(batch.messages, ends, strict=True):
            peer = message.target if message.source == me else message.source
            index = state.sent.get(peer, 0)
            state.sent[peer] = index + 1
            ns = max(0, end - state.clock)
            bare = 0 if case.buffered and message.source == me else programs.delivery(message)
            state.current.events.append(
                Wait(batch.group, index, peer, ns, min(ns, bare), issued[message][me], state.clock + ns, message)
            )
            state.clock += ns
        ready.append(me)

    while ready:
        me = ready.popleft()
        state = ranks[me]
        while True:
            op: Op | None = next(state.program, None)
            if op is None:
                done += 1
                break
            if isinstance(op, Own):
                state.current.events.append((op.family, op.ns))
                state.clock += op.ns
            elif isinstance(op, EndOfStep):
                state.current.end = state.clock
                state.current = Step()
                state.steps.append(state.current)
            elif isinstance(op, Collective):
                enter(me, op)
                break
            else:
                issue(me, op)
                break
    if done < case.ranks:
        raise RuntimeError(f"{case.ranks - done} ranks of {case.name} wait for ever")
    for state in ranks:
        state.steps.pop()
    return Replay(case, [state.steps for state in ranks], programs.slow_link)
