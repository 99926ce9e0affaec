"""Sends and receives of a pipeline: the transfer of each link, the bubble, and the stage that is late.

1. *Transfer of a link*, one number for a block of steps. For the first messages in each direction of a step, each end
   puts the times of its own clock into words that only it fills (MIN with INT64_MAX: a gather): when the sender issued
   it, and when the receiver's wait for it ended. ``MIN(end - issued)`` of a direction is the transfer plus the offset
   of the two clocks, as soon as one receiver was already waiting; in the other direction the offset counts negatively:

       transfer <= (MIN forward (end - issued) + MIN backward (end - issued)) / 2

   as in NTP. Where both ends waited for a message, and neither had waited for another one of the same batch just
   before, the shorter of the two waits is a bound as well (a send that ends with its receive). The least bound is
   taken, and of each wait ``network = min(wait, transfer)``. A message tells something only if its receive was issued
   before it arrived. If none did in one of the directions (buffered sends to a stage that is always late) and no send
   was waited for either, the shortest wait of a receiver of this link stands in. It is at most the longest transfer
   of the other links.

2. *Late stage*. ``pipeline = wait - network``, summed over the step. Like the last rank in a collective, the busiest
   stage waits least. A part of the bubble may be waited in a collective that the whole pipeline takes part in (a norm
   over the world at the end of the step: the last stage gets there first), so the stage that is late is the one with

       MIN(pipeline + waits in collectives of groups that contain this one)

3. *Bubble*. What even the stage that waits least for messages has to wait is nobody's fault. The same is true of what
   the schedule itself costs, with p stages and m microbatches (the messages of one direction of a link in the step,
   which is right for interleaved stages, too):

       bound = (p - 1) / m * (the least compute of any stage in the step)
       bubble = min(pipeline, max(MIN pipeline, bound)),   behind[late stage] = pipeline - bubble

   What the late stage loads or saves longer than the least of all stages delays the whole schedule, so the bubble is
   at most ``pipeline`` minus this (but not less than the bound), if no other stage does so for longer.

   All waits of the late stage itself are bubble. A stage has room for its bubble in its waits, also those in
   collectives of the whole pipeline, and in its own time other than compute. If any stage has room for less than a
   quarter of the bound, the group is not a pipeline, and no waits in collectives are bubble.

4. *Lateness*. The late stage was late by ``MAX pipeline - max(MIN pipeline, bound)``, shared out over its excesses as
   in a collective. One dimension more are the transfers of its own messages: ``network - MIN network``.

5. *Latency*, before 2: what transfers cost beyond ``network``, by a replay of some steps (the code itself,
   ``whyidle.ledger.replay``). It is taken off ``pipeline``.

The words of 2 to 4 need the transfers of 1, so they go into the exchange of the next block.
"""

from __future__ import annotations

from typing import NamedTuple

from whyidle.verdict.lookthrough import Group, GroupWaits

from .case import COMPUTE, FAMILIES, Case
from .latency import replayed_steps
from .member import RANK_BITS, Member, Options, Reasons, Slice, Words, containing, least, pack_own, seconds
from .programs import Message
from .replay import Wait

SERIAL = FAMILIES.index("storage"), FAMILIES.index("cpu")
INT64_MAX = (1 << 63) - 1
WAITED = 10_000
"""ns: a shorter time does not count as a wait."""
OFFSETS = 7_000_000_000
"""ns by which the clocks of two neighbours differ in the simulator: no formula may depend on it."""


def link_of(rank: int, peer: int) -> tuple[int, int]:
    return min(rank, peer), max(rank, peer)


def link_floors(group: Group, members: list[Member], options: Options) -> dict[tuple[int, int], int]:
    """Link -> how long one of its messages takes, ns."""
    floors: dict[tuple[int, int], int] = {}
    apart: dict[tuple[int, int], int] = {}  # sender, receiver -> MIN(end - issued)
    received_in: dict[tuple[int, int], int] = {}  # link -> the shortest wait of a receiver
    for message, (sent, received) in _both_ends(group, members, options).items():
        way, pair = message[:2], link_of(*message[:2])
        shorter = min(sent.ns, received.ns)
        if options.floor == "least":
            _least(floors, pair, shorter)
            continue
        if received.end - received.issued >= WAITED:
            _least(apart, way, received.end - sent.issued + OFFSETS * (message.target - message.source))
        if received.ns >= WAITED:
            _least(received_in, pair, received.ns)
        if shorter >= WAITED and fresh(sent) and fresh(received):
            _least(floors, pair, shorter)
    for (source, target), passed in apart.items():
        if source < target and (target, source) in apart:
            _least(floors, (source, target), max(0, (passed + apart[target, source]) // 2))
    longest = max(floors.values(), default=INT64_MAX)
    return {**{pair: min(ns, longest) for pair, ns in received_in.items()}, **floors}


def _least(values: dict[tuple[int, int], int], key: tuple[int, int], value: int) -> None:
    values[key] = min(values.get(key, value), value)


def _both_ends(group: Group, members: list[Member], options: Options) -> dict[Message, tuple[Wait, Wait]]:
    """The first messages of each direction in each step -> the waits of sender and receiver."""
    ends: dict[Message, dict[int, Wait]] = {}
    for member in members:
        for slice_ in member.slices[group]:
            count: dict[tuple[int, int], int] = {}
            for call in slice_.calls:
                assert call.message is not None
                way = call.message[:2]
                count[way] = count.get(way, 0) + 1
                if count[way] <= options.messages or options.floor == "least":
                    ends.setdefault(call.message, {})[member.rank] = call
    return {message: (both[message.source], both[message.target]) for message, both in ends.items() if len(both) == 2}


def fresh(wait: Wait) -> bool:
    """Whether the wait began when its message was issued, not after the wait for another message of its batch."""
    return wait.end - wait.ns - wait.issued < WAITED


class StepWait(NamedTuple):
    """The waits of one rank for messages in one step, ns."""

    together: int  # what it waited in collectives that the whole pipeline takes part in

    links: dict[int, int]  # peer -> transfers
    rest: dict[int, int]  # peer -> the waits beyond the transfers
    latency: int  # of the rest: what transfers cost

    @property
    def network(self) -> int:
        return sum(self.links.values())

    @property
    def pipeline(self) -> int:
        return sum(self.rest.values()) - self.latency

    @property
    def idle(self) -> int:
        """What the stage waited for the pipeline at most: part of its bubble may lie in such a collective."""
        return self.pipeline + self.together


def split_messages(
    case: Case, group: Group, members: list[Member], dimensions: list[str], options: Options
) -> dict[int, GroupWaits]:
    """The waits of each member, by the rules above."""
    floors = link_floors(group, members, options)
    together = containing(group, members) if options.together else []
    replayed = replayed_steps(group, members, containing(group, members)) if options.latency else None
    costs = replayed.cost if replayed is not None else [0] * len(members)
    waits = {
        member.rank: [_step(member, slice_, together, floors, cost) for slice_ in member.slices[group]]
        for member, cost in zip(members, costs, strict=True)
    }
    words = least(_pack(member, group, dimensions, waits[member.rank]) for member in members)
    per_busy = (len(group.ranks) - 1) / case.microbatches if options.bubble else 0.0
    blame = _behind_the_stage if options.late_stage == "stage" else _behind_peers
    split = {}
    for member in members:
        reasons = Reasons(member, group, dimensions)
        links: dict[int, int] = {}
        behind: dict[int, int] = {}
        bubble = schedule = 0
        for number, (wait, slice_) in enumerate(zip(waits[member.rank], member.slices[group], strict=True)):
            bound = int(words["busy", number] * per_busy)
            blamed, late = blame(member.rank, number, wait, bound, words, options)
            bubble += wait.pipeline - sum(blamed.values())
            schedule += bound if 4 * words["room", number] >= bound else min(bound, wait.pipeline)
            reasons.add(late, number, slice_, words, options, wait.network - words["network", number])
            for total, some in ((links, wait.links), (behind, blamed)):
                for peer, ns in some.items():
                    total[peer] = total.get(peer, 0) + ns
        split[member.rank] = GroupWaits(
            group,
            network=sum(links.values()) / 1e9,
            latency=sum(wait.latency for wait in waits[member.rank]) / 1e9,
            slowest=replayed.link if replayed is not None else None,
            bubble=bubble / 1e9,
            schedule=schedule / 1e9,
            behind=seconds(behind),
            links=seconds(links),
            **reasons.fields(),
        )
    return split


def _step(
    member: Member, slice_: Slice, together: list[str], floors: dict[tuple[int, int], int], cost: int
) -> StepWait:
    wait = StepWait(sum(slice_.elsewhere.get(name, 0) for name in together), {}, {}, 0)
    for call in slice_.calls:
        assert call.peer is not None
        network = min(call.ns, floors.get(link_of(member.rank, call.peer), 0))
        wait.links[call.peer] = wait.links.get(call.peer, 0) + network
        wait.rest[call.peer] = wait.rest.get(call.peer, 0) + call.ns - network
    return wait._replace(latency=min(max(0, cost - wait.network), wait.pipeline))


def _pack(member: Member, group: Group, dimensions: list[str], waits: list[StepWait]) -> Words:
    words: Words = {}
    for number, (wait, slice_) in enumerate(zip(waits, member.slices[group], strict=True)):
        words["idle", number] = (wait.idle // 1000) << RANK_BITS | member.rank
        words["pipeline", number] = wait.pipeline
        words["most", number] = -wait.pipeline
        words["network", number] = wait.network
        words["busy", number] = slice_.own[COMPUTE]
        serial = sum(slice_.own[family] for family in SERIAL)
        words["serial", number] = (-serial // 1000) << RANK_BITS | member.rank
        words["least serial", number] = serial
        words["room", number] = wait.idle + sum(slice_.own) - slice_.own[COMPUTE]
        for peer, ns in wait.rest.items():
            words["peer", number, member.rank, peer] = ns  # for _behind_peers alone
        pack_own(words, number, slice_, dimensions)
    return words


def _behind_the_stage(
    rank: int, number: int, wait: StepWait, bound: int, words: Words, options: Options
) -> tuple[dict[int, int], int]:
    """-> (late rank -> ns waited behind it, ns by which this rank was late)."""
    last = words["idle", number] & ((1 << RANK_BITS) - 1)
    longest = words["serial", number]
    serial = 0
    if options.serial and longest & ((1 << RANK_BITS) - 1) == last:
        serial = -(longest >> RANK_BITS) * 1000 - words["least serial", number]

    def late(waited: int) -> int:
        return max(0, waited - max(words["pipeline", number], bound), min(serial, waited - bound))

    return ({}, late(-words["most", number])) if last == rank else ({last: late(wait.pipeline)}, 0)


def _behind_peers(
    rank: int, number: int, wait: StepWait, bound: int, words: Words, options: Options
) -> tuple[dict[int, int], int]:
    """The same, but each wait is blamed on its peer, netted against what the peer waited for this rank, or gross.

    Kept to compare: it follows a slow stage through all stages between, and each of them adds its error.
    """
    theirs = {peer: words.get(("peer", number, peer, rank), 0) for peer in wait.rest}
    if options.late_stage == "gross":
        net, late = wait.rest, sum(theirs.values())
    else:
        net = {peer: max(0, ns - theirs[peer]) for peer, ns in wait.rest.items()}
        late = sum(max(0, theirs[peer] - ns) for peer, ns in wait.rest.items())
    total = sum(net.values())
    blamed = min(total, max(0, wait.pipeline - bound))
    return {peer: blamed * ns // total for peer, ns in net.items() if total}, late
