"""Splits the waits of pipeline stages for each other into transfers, bubble and late stages. Pure functions.

A stage waits for a message because the message is on its way, because the schedule has a bubble there, or because
another stage is late. A block of steps is exchanged twice, each time as a minimum of words over the stages:

1. `pack_times`: for some messages of each link, when the sender issued the message and when the receiver had it, each
   on its own clock. The smallest difference in one direction is a transfer plus the offset of the two clocks. Half of
   the difference between both directions is the offset (as in NTP, RFC 5905, section 8), and 0 for two CPU ranks of
   one machine. A message is on its way from when both ends were issued, or when the one before it arrived if that is
   later, until it arrives. Only messages that their receiver was waiting for are used. If a direction has none, the
   shortest wait of the receiver is used instead, or the longest transfer of the other links if that is less: the wait
   may be for a late stage.
   The block also carries the messages of some steps. From these, each stage computes the *latency*: what transfers cost
   beyond the waits for its own messages (ledger/replay.py).
2. `pack_stages`: each stage's wait in a step, less the transfers of its messages and the latency. The stage that waits
   least is the busiest; its waits in collectives of the whole pipeline count too. The least wait is the bubble of all
   stages, and it is at least (p - 1) / m of the least busy stage's time for p stages and m microbatches (GPipe and
   1F1B: arXiv 2104.04473, section 2.2). A stage waits a part of it in the next collective of the whole pipeline, if it
   has no more messages. The rest of a wait is for the busiest stage. It is at least as long as that
   stage loads data or saves longer than the others: this delays the whole schedule, whatever the stages compute.

Sends and receives are not always those of a pipeline. In one, some stage must receive before it can send. If all ranks
send first, as neighbours on a ring do (ring attention, halos), nobody waits for a schedule: there is no bound, a wait
is for the rank that waits least, and what all wait stays unsplit.
"""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from .causes import LATE_FAMILIES
from .clock import own_clock
from .layout import SLOTS
from .waits import (
    HEADER,
    NOTHING,
    RANK_BITS,
    RANK_MASK,
    US,
    Message,
    Settled,
    StepWaits,
    add_lateness,
    check,
    header,
)

MESSAGES = 32
"""How many messages are compared per block and direction of a link."""
MOST_STAGES = 64
_WAITED = 10_000
"""Anything shorter does not count as a wait, ns."""
_SURELY, _PART = 2_000_000, 4
"""A receiver that asks for a message long after it has issued the receive may find it there: it has waited for it if it
waited for _SURELY ns, or for one _PART-th of that time."""
_BREAK = 500_000
"""Waits that follow each other within this time are one, ns."""
_WORDS_OF_MESSAGE = 4
"""When it was issued, when it was received, how long the receiver waited, and how long ago the receive was issued."""
_SAID = 7
_PER_STEP = 1 + len(LATE_FAMILIES) + SLOTS + _SAID
"""-(not complete), own time per family, waits elsewhere per slot, and the _SAID: -serial with rank, idle with rank,
pipeline, -pipeline, -microbatches, room, -(not sends first)"""
_SERIAL = LATE_FAMILIES.index("storage"), LATE_FAMILIES.index("cpu")
"""Families of time in which a stage has not begun with its microbatches, or is done with them: it loads data or saves.
"""
_COMPUTE, _UNATTRIBUTED = LATE_FAMILIES.index("compute"), LATE_FAMILIES.index("unattributed")
_NO_ROOM = 4
"""A stage has room for its bubble in its waits and in its own time other than compute. If any stage has room for less
than this part of the bound, its sends and receives are those of something else, for example of neighbours on a ring."""
_ISSUED, _END = attrgetter("issued"), attrgetter("end")


class Link(NamedTuple):
    """The measurements of a link between two stages. Times in µs."""

    offset: int
    """How far the clock of the target is ahead of that of the source."""
    transfer: int
    """The median time that a message takes, in either direction."""
    least: int = 0
    """The shortest time that a message took. 0 if that is not known."""


class Transfer(NamedTuple):
    """How long messages take on a link, in either direction, in ns."""

    usual: int
    least: int = 0
    """0 if that is not known."""


class Stages(NamedTuple):
    """This rank's own waits in a block, divided by means of the known transfers. Times in ns; one entry per step."""

    network: list[int]
    pipeline: list[int]
    """The waits that are not transfers: the bubble, and waits for late stages."""
    microbatches: list[int]
    latency: list[int]
    """What transfers cost beyond the waits for this rank's own messages."""
    queue: list[int]
    """Part of `network`: transfers that took longer because this rank's own threads got no CPU."""
    link: tuple[int, int] | None = None
    """The two ranks of the slowest link, if it is known."""


_UNKNOWN = Transfer(0)


def times_words(ranks: int) -> int:
    """The messages of each directed link, and the clock of each rank."""
    return HEADER + (2 * MESSAGES * _WORDS_OF_MESSAGE + 1) * ranks


@functools.cache
def clock_word() -> int:
    """A number for the clock of this process, the same in all processes that have this clock; NOTHING if not known."""
    clock = own_clock()
    if not clock.boot:
        return NOTHING
    text = f"{clock.boot} {clock.monotonic_offset_ns}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def stages_words(length: int) -> int:
    return HEADER + length * _PER_STEP


def _link(ranks: Sequence[int], source: int, target: int) -> int | None:
    """The index of the directed link from source to target; None if they are not neighbours on the ring of stages."""
    count = len(ranks)
    here, there = ranks.index(source), ranks.index(target)
    if there == (here + 1) % count and not (count == 2 and here == 1):
        return 2 * here
    return 2 * there + 1 if here == (there + 1) % count else None


def pack_times(
    buffer: array[int],
    rank: int,
    ranks: Sequence[int],
    steps: Sequence[StepWaits],
    length: int,
    clock: int = NOTHING,
) -> None:
    """Writes the times at which messages were issued and received. ``clock``: see `clock_word`."""
    words = [*header(rank, steps), *[NOTHING] * (times_words(len(ranks)) - HEADER)]
    for index, step in enumerate(steps):
        for (peer, sent), messages in _by_direction(_in_one(step.messages)).items():
            if peer not in ranks:
                continue
            link = _link(ranks, rank, peer) if sent else _link(ranks, peer, rank)
            if link is None:
                continue
            for number, message in _chosen(messages, index, length):
                at = HEADER + (link * MESSAGES + number) * _WORDS_OF_MESSAGE
                if sent:
                    words[at] = message.issued // US
                elif message.ns >= max(_WAITED, min(_SURELY, (message.end - message.issued) // _PART)):
                    words[at + 1] = message.end // US
                    words[at + 2] = message.ns // US
                    words[at + 3] = (message.end - message.issued) // US
    words[times_words(len(ranks)) - len(ranks) + ranks.index(rank)] = clock
    buffer[: len(words)] = array("q", words)


def _in_one(messages: Sequence[Message]) -> list[Message]:
    """Messages, each with the length of its wait and of those for sends just before it, which may be awaited first."""
    found: list[Message] = []
    since = sent = 0
    for message in messages:
        begun = message.end - message.ns
        since = begun if not sent < begun <= sent + _BREAK else since
        sent = message.end if message.sent else 0
        found.append(message._replace(ns=message.end - min(since, begun)))
    return found


def _by_direction(messages: Sequence[Message]) -> dict[tuple[int, bool], list[Message]]:
    found: dict[tuple[int, bool], list[Message]] = {}
    for message in messages:
        found.setdefault((message.peer, message.sent), []).append(message)
    for messages in found.values():
        messages.sort(key=_ISSUED)  # ranks may wait in any order, but message i meets call i of the other end
    return found


def sends_first(step: StepWaits) -> bool:
    """Whether a rank had issued a send before its first receive of the step had ended. A send that had ended before
    that receive was issued may be of the step before."""
    first = min((one for one in step.messages if not one.sent), key=_END, default=None)
    return first is not None and any(
        one.issued < first.end and one.end >= first.issued for one in step.messages if one.sent
    )


def _chosen(messages: list[Message], index: int, length: int) -> list[tuple[int, Message]]:
    """The first messages of a step, with their indices in the block. Both ends choose the same messages."""
    per_step = max(1, MESSAGES // length)
    first = index * per_step
    return [(first + number, message) for number, message in enumerate(messages[:per_step]) if first < MESSAGES]


def transfers(
    result: Sequence[int], rank: int, ranks: Sequence[int], steps: Sequence[StepWaits]
) -> dict[int, Transfer]:
    """How long messages take on each of this rank's links, by peer. Raises BlockMismatch."""
    check(result, rank, ranks, steps)
    found: dict[int, Transfer] = {}
    links = links_of(result, ranks)
    longest = max([link.transfer for link in links.values()], default=NOTHING)
    for peer in ranks:
        ways = [] if peer == rank else [_link(ranks, rank, peer), _link(ranks, peer, rank)]
        messages = [_messages_of(result, way) for way in ways if way is not None]
        if (link := links.get((ranks.index(rank), ranks.index(peer)))) is not None:
            found[peer] = Transfer(link.transfer * US, link.least * US)
        elif waited := [one.waited for way in messages for one in way if one.waited * US >= _WAITED]:
            # If one of two ranks that both send first never waits, it is late, and not its link.
            together = longest == NOTHING and all(map(sends_first, steps))
            found[peer] = Transfer(0 if together else min(*waited, longest) * US)
    return found


def links_of(result: Sequence[int], ranks: Sequence[int]) -> dict[tuple[int, int], Link]:
    """(index of the source stage, index of the target stage) -> their link, for links with messages both ways. One way
    is enough if both have the same clock."""
    found: dict[tuple[int, int], Link] = {}
    for source, target in ((here, (here + 1) % len(ranks)) for here in range(len(ranks))):
        ways = [_link(ranks, ranks[here], ranks[there]) for here, there in ((source, target), (target, source))]
        messages = [_messages_of(result, way) for way in ways if way is not None]
        known = _one_clock(result, ranks, ranks[source], ranks[target])
        if len(messages) == 2 and (any(messages) if known else all(messages)):
            link = found[source, target] = _measured(messages[0], messages[1], known)
            found[target, source] = link._replace(offset=-link.offset)
    return found


class _Measurement(NamedTuple):
    """A message that its receiver waited for. Times in µs."""

    issued: int  # on the sender's clock
    end: int
    waited: int
    since: int
    """How long before the end the receive was issued."""


def _messages_of(result: Sequence[int], link: int) -> list[_Measurement]:
    """The messages of a directed link that their receiver waited for."""
    at = HEADER + link * MESSAGES * _WORDS_OF_MESSAGE
    words = result[at : at + MESSAGES * _WORDS_OF_MESSAGE]
    messages = map(_Measurement, *(words[field::_WORDS_OF_MESSAGE] for field in range(_WORDS_OF_MESSAGE)))
    return [message for message in messages if NOTHING not in message]


def _one_clock(result: Sequence[int], ranks: Sequence[int], one: int, other: int) -> bool:
    """Whether two ranks have the same clock."""
    clocks = result[times_words(len(ranks)) - len(ranks) : times_words(len(ranks))]
    return clocks[ranks.index(one)] == clocks[ranks.index(other)] != NOTHING


def _measured(there: list[_Measurement], back: list[_Measurement], one_clock: bool) -> Link:
    """Measures the link in the direction of ``there``."""
    least = [min((message.end - message.issued for message in way), default=0) for way in (there, back)]
    offset = 0 if one_clock else (least[0] - least[1]) // 2
    times = []
    for way, ahead in ((there, offset), (back, -offset)):
        before = None
        for message in way:
            begun = max(message.issued + ahead, message.end - message.since)
            times.append(max(0, message.end - (begun if before is None else max(begun, before))))
            before = message.end
    return Link(offset, sorted(times)[len(times) // 2], min(times))


def queued(queue: int, transfer: int, least: int) -> int:
    """The part of ``queue`` that made a transfer longer. ``queue``: how long the rank's own threads got no CPU in it.

    While a message is on the link, such threads delay nothing. It is not known when they queued. On a link that needs
    ``least`` for a message, the estimate is that they did so evenly.
    """
    return queue * (transfer - least) // transfer if transfer > least else 0


def stages_of(
    steps: Sequence[StepWaits], usual: Mapping[int, Transfer], cost: int = 0, link: tuple[int, int] | None = None
) -> Stages:
    """Divides this rank's waits in each step into transfers and the rest.

    ``cost`` is what all transfers, including those of other ranks, cost this rank in a step, in ns. ``link`` is the
    slowest link. Both come from ledger/replay.py.
    """
    found = Stages([], [], [], [], [], link)
    for step in steps:
        links = queue = 0
        for peer, ns, waiting in zip(step.peers, step.calls, step.queues or repeat(0), strict=False):
            transfer, least = usual.get(peer, _UNKNOWN)
            transfer = min(ns, transfer)
            links += transfer
            queue += queued(waiting, transfer, least)
        queue = min(queue, links)  # a wait is longer than its transfer, and it is not known in which part they queued
        beyond = min(max(0, cost - (links - queue)), step.total - links)  # a replay leaves the queue out, too
        found.network.append(links)
        found.queue.append(queue)
        found.latency.append(beyond)
        found.pipeline.append(step.total - links - beyond)
        found.microbatches.append(max((len(messages) for messages in _by_direction(step.messages).values()), default=0))
    return found


def pack_stages(
    buffer: array[int],
    rank: int,
    slot: int,
    together: Sequence[int],
    steps: Sequence[StepWaits],
    stages: Stages,
    length: int,
) -> None:
    """Writes this stage's waits and own time. The transfers of its own messages count as its waits elsewhere.

    ``together``: slots of collectives in which the whole pipeline takes part. A stage may wait a part of its bubble in
    these: for example, the last stage arrives first at a norm over the world.
    """
    words = header(rank, steps)
    for index, step in enumerate(steps):
        words += (-(not step.complete), *step.own, *_elsewhere(step, slot, stages.network[index]))
        pipeline = stages.pipeline[index] // US
        serial = sum(step.own[family] for family in _SERIAL) // US
        idle = pipeline + sum(step.elsewhere[other] for other in together) // US
        words += (
            -serial << RANK_BITS | rank,
            idle << RANK_BITS | rank,
            pipeline,
            -pipeline,
            -stages.microbatches[index],
            idle + (sum(step.own) - step.own[_COMPUTE]) // US,
            -(not sends_first(step)),
        )
    words += [NOTHING] * (stages_words(length) - len(words))
    buffer[: len(words)] = array("q", words)


def _elsewhere(step: StepWaits, slot: int, network: int) -> list[int]:
    elsewhere = [*step.elsewhere]
    elsewhere[slot] = network
    return elsewhere


def split_stages(
    result: Sequence[int], rank: int, ranks: Sequence[int], slot: int, steps: Sequence[StepWaits], stages: Stages
) -> Settled:
    """Splits this rank's waits, given the minimum over all stages. Raises BlockMismatch."""
    check(result, rank, ranks, steps)
    settled = Settled.empty(result, steps)
    settled.link = stages.link
    for index, step in enumerate(steps):
        at = HEADER + index * _PER_STEP
        if index >= result[2] or result[at]:
            settled.leave_unsplit(step)
            continue
        spent, said = result[at + 1 : at + _PER_STEP - _SAID], result[at + _PER_STEP - _SAID : at + _PER_STEP]
        longest, busiest, least, less_most, less_microbatches, room, in_order = said
        last, least, most = busiest & RANK_MASK, least * US, -less_most * US
        schedule = spent[_COMPUTE] * (len(ranks) - 1) // max(1, -less_microbatches)  # of the least busy stage
        bound = schedule if in_order else 0
        waited = stages.pipeline[index]
        serial = _serial_excess(spent, longest, last)
        bubble = waited if last == rank else _bubble(waited, least, bound, serial)
        queue = stages.queue[index]
        settled.queue += queue
        settled.network += stages.network[index] - queue
        settled.pipeline += stages.latency[index]
        if in_order:
            settled.pipeline += waited
        else:
            settled.straggler += waited - bubble
            settled.unsplit += bubble
        settled.latency += stages.latency[index]
        settled.schedule += bound if room * US * _NO_ROOM >= bound else min(waited, bound)
        if waited > bubble:
            settled.behind[last] = settled.behind.get(last, 0) + waited - bubble
        late = most - _bubble(most, least, bound, serial)
        if late > 0:
            settled.late_by[last] = settled.late_by.get(last, 0) + late
            if last == rank:
                mine = step._replace(elsewhere=_elsewhere(step, slot, stages.network[index]))
                add_lateness(settled, late, mine, spent, _UNATTRIBUTED)
    return settled


def _bubble(waited: int, least: int, bound: int, serial: int) -> int:
    """The part of a wait that no late stage causes. ``serial``: see `_serial_excess`."""
    return min(waited, max(least, bound), max(waited - serial, bound))


def _serial_excess(own: Sequence[int], longest: int, last: int) -> int:
    """How much longer the busiest stage loaded data or saved than the quickest one, in ns; 0 if another stage took
    longest. ``own``: the least own time per family. ``longest``: the longest serial time, negative, with its rank."""
    if longest & RANK_MASK != last:
        return 0
    return max(0, -(longest >> RANK_BITS) * US - sum(own[family] for family in _SERIAL))
