"""The cost of transfers for the stages of a pipeline, by the code of the exchange: its messages, its minimum, the
replay."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from whyidle.ledger.layout import SLOTS
from whyidle.ledger.messages import links_of, pack_times, times_words
from whyidle.ledger.replay import Replayed, capacity_of, replayed, sequence_words, steps_to_replay
from whyidle.ledger.waits import Message, StepWaits
from whyidle.verdict.lookthrough import Group

from .member import Member

OFFSETS = 7_000_000_000
"""ns by which the clocks of two neighbours differ."""
TOGETHER = 0
"""The slot that stands for all collectives of the whole pipeline."""


def replayed_steps(group: Group, members: list[Member], together: list[str]) -> Replayed | None:
    """The replay of a block of all steps, with the capacity that blocks have once one has shown how much it takes."""
    steps = {member.rank: step_waits(group, member, together) for member in members}
    stages, length = len(group.ranks), len(steps[group.ranks[0]])
    times = []
    for rank in group.ranks:
        words = array("q", bytes(8 * times_words(stages)))
        pack_times(words, rank, group.ranks, steps[rank], length)
        times.append(words)
    links = links_of(_least(times), group.ranks)

    def sequences(capacity: int) -> list[int]:
        said: list[int] = []
        for index in steps_to_replay(length, stages, capacity):
            samples = ((rank, steps[rank][index]) for rank in group.ranks)
            said += _least([sequence_words(rank, group.ranks, step, (TOGETHER,), capacity) for rank, step in samples])
        return said

    capacity = capacity_of(sequences(0), stages, 0)
    count = len(steps_to_replay(length, stages, capacity))
    return replayed(sequences(capacity), group.ranks, links, capacity, count) if capacity else None


def _least(said: Sequence[Sequence[int]]) -> list[int]:
    return list(map(min, *said))


def step_waits(group: Group, member: Member, together: list[str]) -> list[StepWaits]:
    """A member's waits in a pipeline, as input of the exchange, on a separate clock of the rank."""
    ahead = OFFSETS * group.ranks.index(member.rank)
    found = []
    for number, (slice_, wall) in enumerate(zip(member.slices[group], member.walls, strict=True), start=1):
        messages = []
        for call in slice_.calls:
            assert call.peer is not None
            assert call.message is not None
            sent = call.message.source == member.rank
            messages.append(Message(call.peer, sent, call.issued + ahead, call.end + ahead, call.ns))
        elsewhere = [0] * SLOTS
        elsewhere[TOGETHER] = sum(slice_.elsewhere.get(name, 0) for name in together)
        peers = [message.peer for message in messages]
        found.append(StepWaits(number, wall, [call.ns for call in slice_.calls], (), elsewhere, peers, messages))
    return found
