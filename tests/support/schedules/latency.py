"""What transfers cost the stages of a pipeline, by the exchange's own code: what they say, its minimum, the replay."""

from __future__ import annotations

from array import array

from whyidle.ledger.layout import SLOTS
from whyidle.ledger.messages import links_of, pack_times, times_words
from whyidle.ledger.replay import Replayed, capacity_of, replayed, sequence_words
from whyidle.ledger.waits import Message, StepWaits
from whyidle.verdict.lookthrough import Group

from .member import Member

OFFSETS = 7_000_000_000
"""ns by which the clocks of two neighbours differ."""
TOGETHER = 0
"""The slot that stands for all collectives of the whole pipeline."""


def replayed_step(group: Group, members: list[Member], together: list[str]) -> Replayed | None:
    """Of the step in the middle, with the capacity that blocks have once one has told how much it takes."""
    _, capacity = _exchanged(group, members, together, 0)
    return _exchanged(group, members, together, capacity)[0] if capacity else None


def _exchanged(group: Group, members: list[Member], together: list[str], capacity: int) -> tuple[Replayed | None, int]:
    """-> (what the replay tells, the capacity of the next block)."""
    steps = {member.rank: step_waits(group, member, together) for member in members}
    said = []
    for rank in group.ranks:
        words = array("q", bytes(8 * times_words(len(group.ranks))))
        pack_times(words, rank, group.ranks, steps[rank], len(steps[rank]))
        sample = steps[rank][len(steps[rank]) // 2]
        words.extend(sequence_words(rank, group.ranks, sample, (TOGETHER,), capacity))
        said.append(words)
    least = [min(words) for words in zip(*said, strict=True)]
    sequences = least[times_words(len(group.ranks)) :]
    found = replayed(sequences, group.ranks, links_of(least, group.ranks), capacity)
    return found, capacity_of(sequences, len(group.ranks), capacity)


def step_waits(group: Group, member: Member, together: list[str]) -> list[StepWaits]:
    """A member's waits in a pipeline, as the exchange is given them, on a clock of the rank's own."""
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
