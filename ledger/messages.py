"""How the waits of a pipeline's stages for each other are told apart: the arithmetic of a block. Pure functions.

A stage waits for a message because the message is under way, because the schedule has a bubble there, or because
another stage is late. A block of steps is exchanged twice, each time as a minimum of words over the stages:

1. `pack_times`: of some messages of each link, when the sender issued it and when the receiver had it, each on its own
   clock. The least difference of a direction is a transfer plus the offset of the two clocks, so that half of the
   difference of both directions is the offset (as in NTP, RFC 5905, section 8). A message is then under way from when
   it was issued, or the one before it had arrived, to when it arrives. Only a message that its receiver was waiting
   for tells something. Where a direction has none, the receiver's shortest wait stands in.
   With it go the messages of one step, from which each stage finds what transfers cost beyond the waits for its own
   messages, the *latency* (ledger/replay.py).
2. `pack_stages`: each stage's wait of a step, less the transfers of its messages and the latency. The stage that waits
   least is the busiest, counting what it waits in collectives of the whole pipeline. What is waited at least is the
   bubble of all stages: (p - 1) / m of the least busy stage's time for p stages and m microbatches (GPipe and 1F1B:
   arXiv 2104.04473, section 2.2). The rest is waited for the busiest stage.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from .causes import LATE_FAMILIES
from .layout import SLOTS
from .waits import (
    HEADER,
    LATE_STEP,
    NOTHING,
    RANK_BITS,
    RANK_MASK,
    US,
    Message,
    Settled,
    StepWaits,
    check,
    header,
    lateness_of,
)

MESSAGES = 32
"""Messages of each direction of a link that are compared in a block."""
MOST_STAGES = 64
_WAITED = 10_000
"""ns: what is shorter is no wait."""
_WORDS_OF_MESSAGE = 3  # when it was issued, when it was received, how long the receiver waited
_PER_STEP = 1 + len(LATE_FAMILIES) + SLOTS + 4
"""-(not measured), own time per family, waits elsewhere per slot, idle with rank, pipeline, -pipeline, -microbatches"""
_UNATTRIBUTED = LATE_FAMILIES.index("unattributed")
_ISSUED = attrgetter("issued")


class Link(NamedTuple):
    """What is known of the way from one stage to another, if messages went both ways. µs"""

    offset: int
    """How much the clock of the target is ahead."""
    transfer: int
    """The median time for which a message is under way, in either direction."""


class Stages(NamedTuple):
    """What this rank's own waits of a block are, once the transfers are known. ns per step."""

    network: list[int]
    pipeline: list[int]
    """What is left: the bubble, and waits for late stages."""
    microbatches: list[int]
    latency: list[int]
    """What transfers cost beyond the waits for this rank's own messages."""
    link: tuple[int, int] | None = None
    """The two ranks of the slowest link, where that is known."""


def times_words(ranks: int) -> int:
    return HEADER + 2 * ranks * MESSAGES * _WORDS_OF_MESSAGE


def stages_words(length: int) -> int:
    return HEADER + length * _PER_STEP


def _link(ranks: Sequence[int], source: int, target: int) -> int | None:
    """The number of a directed link between neighbours on the ring of stages; None between others."""
    count = len(ranks)
    here, there = ranks.index(source), ranks.index(target)
    if there == (here + 1) % count and not (count == 2 and here == 1):
        return 2 * here
    return 2 * there + 1 if here == (there + 1) % count else None


def pack_times(buffer: array[int], rank: int, ranks: Sequence[int], steps: Sequence[StepWaits], length: int) -> None:
    """Writes when messages were issued and received."""
    words = [*header(rank, steps), *[NOTHING] * (times_words(len(ranks)) - HEADER)]
    for index, step in enumerate(steps):
        for (peer, sent), messages in _by_direction(step).items():
            if peer not in ranks:
                continue
            link = _link(ranks, rank, peer) if sent else _link(ranks, peer, rank)
            if link is None:
                continue
            for number, message in _chosen(messages, index, length):
                at = HEADER + (link * MESSAGES + number) * _WORDS_OF_MESSAGE
                if sent:
                    words[at] = message.issued // US
                elif message.end - message.issued >= _WAITED:  # it was asked for before it came
                    words[at + 1] = message.end // US
                    words[at + 2] = message.ns // US
    buffer[: len(words)] = array("q", words)


def _by_direction(step: StepWaits) -> dict[tuple[int, bool], list[Message]]:
    found: dict[tuple[int, bool], list[Message]] = {}
    for message in step.messages:
        found.setdefault((message.peer, message.sent), []).append(message)
    for messages in found.values():
        messages.sort(key=_ISSUED)  # a rank may wait in another order, but message i meets call i of the other end
    return found


def _chosen(messages: list[Message], index: int, length: int) -> list[tuple[int, Message]]:
    """The first messages of a step, with their numbers in the block: the same on both ends."""
    per_step = max(1, MESSAGES // length)
    first = index * per_step
    return [(first + number, message) for number, message in enumerate(messages[:per_step]) if first < MESSAGES]


def transfers(result: Sequence[int], rank: int, ranks: Sequence[int], steps: Sequence[StepWaits]) -> dict[int, int]:
    """How long a message of each of this rank's links is under way: peer -> ns. Raises BlockMismatch."""
    check(result, rank, ranks, steps)
    found: dict[int, int] = {}
    for peer in ranks:
        ways = [] if peer == rank else [_link(ranks, rank, peer), _link(ranks, peer, rank)]
        messages = [_messages_of(result, way) for way in ways if way is not None]
        if len(messages) == 2 and all(messages):
            found[peer] = _measured(*messages).transfer * US
        elif waited := [wait for way in messages for _, _, wait in way if wait * US >= _WAITED]:
            found[peer] = min(waited) * US
    return found


def links_of(result: Sequence[int], ranks: Sequence[int]) -> dict[tuple[int, int], Link]:
    """Of all stages: numbers of source and target -> their link, where messages went both ways."""
    found: dict[tuple[int, int], Link] = {}
    for source, target in ((here, (here + 1) % len(ranks)) for here in range(len(ranks))):
        ways = [_link(ranks, ranks[here], ranks[there]) for here, there in ((source, target), (target, source))]
        messages = [_messages_of(result, way) for way in ways if way is not None]
        if len(messages) == 2 and all(messages):
            link = found[source, target] = _measured(*messages)
            found[target, source] = link._replace(offset=-link.offset)
    return found


def _messages_of(result: Sequence[int], link: int) -> list[tuple[int, int, int]]:
    """Of a directed link the messages that their receiver waited for: issued, received, waited, µs."""
    at = HEADER + link * MESSAGES * _WORDS_OF_MESSAGE
    words = result[at : at + MESSAGES * _WORDS_OF_MESSAGE]
    messages = zip(words[::3], words[1::3], words[2::3], strict=True)
    return [message for message in messages if NOTHING not in message]


def _measured(there: list[tuple[int, int, int]], back: list[tuple[int, int, int]]) -> Link:
    """The way there."""
    least = [min(end - issued for issued, end, _ in way) for way in (there, back)]
    offset = (least[0] - least[1]) // 2
    times = []
    for way, ahead in ((there, offset), (back, -offset)):
        before = None
        for issued, end, _ in way:
            begun = issued + ahead if before is None else max(issued + ahead, before)
            times.append(max(0, end - begun))
            before = end
    return Link(offset, sorted(times)[len(times) // 2])


def stages_of(
    steps: Sequence[StepWaits], floors: Mapping[int, int], cost: int = 0, link: tuple[int, int] | None = None
) -> Stages:
    """This rank's waits of each step, as transfers and the rest.

    ``cost`` is what all transfers cost this rank in a step, those of other ranks too, ns, and ``link`` the slowest of
    them (ledger/replay.py).
    """
    network, pipeline, microbatches, latency = [], [], [], []
    for step in steps:
        links = sum(min(ns, floors.get(peer, 0)) for peer, ns in zip(step.peers, step.calls, strict=True))
        queue = min(sum(step.queues), links)  # is no transfer's: a replay leaves it out too
        beyond = min(max(0, cost - (links - queue)), step.total - links)
        network.append(links)
        latency.append(beyond)
        pipeline.append(step.total - links - beyond)
        microbatches.append(max((len(messages) for messages in _by_direction(step).values()), default=0))
    return Stages(network, pipeline, microbatches, latency, link)


def pack_stages(
    buffer: array[int],
    rank: int,
    slot: int,
    together: Sequence[int],
    steps: Sequence[StepWaits],
    stages: Stages,
    length: int,
) -> None:
    """Writes what each stage waited, its own time, and, as its waits elsewhere, the transfers of its own messages.

    ``together``: slots of collectives that the whole pipeline takes part in. A part of the bubble may be waited there:
    the last stage is first at a norm over the world.
    """
    words = header(rank, steps)
    for index, step in enumerate(steps):
        words += (-(not step.complete), *step.own, *_elsewhere(step, slot, stages.network[index]))
        pipeline = stages.pipeline[index] // US
        idle = pipeline + sum(step.elsewhere[other] for other in together) // US
        words += (idle << RANK_BITS | rank, pipeline, -pipeline, -stages.microbatches[index])
    words += [NOTHING] * (stages_words(length) - len(words))
    buffer[: len(words)] = array("q", words)


def _elsewhere(step: StepWaits, slot: int, network: int) -> list[int]:
    elsewhere = [*step.elsewhere]
    elsewhere[slot] = network
    return elsewhere


def split_stages(
    result: Sequence[int], rank: int, ranks: Sequence[int], slot: int, steps: Sequence[StepWaits], stages: Stages
) -> Settled:
    """Reads the minimum over all stages beside this rank's own waits. Raises BlockMismatch."""
    check(result, rank, ranks, steps)
    settled = Settled.empty(result, steps)
    settled.link = stages.link
    for index, step in enumerate(steps):
        at = HEADER + index * _PER_STEP
        if index >= result[2] or result[at]:
            settled.leave_unsplit(step)
            continue
        last = result[at + _PER_STEP - 4] & RANK_MASK
        least, most = result[at + _PER_STEP - 3] * US, -result[at + _PER_STEP - 2] * US
        busy = result[at + 1]  # the least busy stage's compute
        bound = busy * (len(ranks) - 1) // max(1, -result[at + _PER_STEP - 1])
        waited = stages.pipeline[index]
        bubble = waited if last == rank else min(waited, max(least, bound))
        queue = min(sum(step.queues), stages.network[index])
        settled.queue += queue
        settled.network += stages.network[index] - queue
        settled.pipeline += waited + stages.latency[index]
        settled.latency += stages.latency[index]
        settled.schedule += min(waited, bound)
        if waited > bubble:
            settled.behind[last] = settled.behind.get(last, 0) + waited - bubble
        late = most - max(least, bound)
        if late > 0:
            settled.late_by[last] = settled.late_by.get(last, 0) + late
            if last == rank:
                mine = step._replace(elsewhere=_elsewhere(step, slot, stages.network[index]))
                own, elsewhere = lateness_of(late, mine, result[at + 1 : at + _PER_STEP - 4], _UNATTRIBUTED)
                settled.late_steps += sum(own) >= LATE_STEP * step.wall
                settled.late_own = [a + b for a, b in zip(settled.late_own, own, strict=True)]
                settled.late_elsewhere = [a + b for a, b in zip(settled.late_elsewhere, elsewhere, strict=True)]
    return settled
