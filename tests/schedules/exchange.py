"""What the exchange between ranks lets each of them know: pack, MIN over the members of a group, split.

Only two things enter the result of a rank: what it measured itself, and MINs of words over the members of its groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from whyidle.verdict.lookthrough import Group, GroupWaits, RankWaits

from .case import COMPUTE, FAMILIES, Case
from .programs import Message
from .replay import Replay, Wait

RANK_BITS = 20
LATE_STEP = 0.05
"""A step counts as late if the rank's own time made it late by this share of the step."""
Words = dict[tuple, int]


@dataclass(frozen=True, slots=True)
class Options:
    """What the split uses; the tests take single corrections away to show their gain."""

    floor: str = "clock"  # of messages: "clock", "least" (of the block), "call" or "step"
    late_stage: str = "stage"  # who is late in a pipeline: "stage", or by peer: "netted", "gross"
    bubble: bool = True  # the schedule's bound counts
    elsewhere: bool = True  # waits in other groups may have made a rank late
    leave_out: bool | str = True  # groups that contain this one are left out of them
    excess: bool = True  # over the least of the members; otherwise all of the rank's own time
    messages: int = 1 << 30  # of each direction of a link in a step that are compared


@dataclass(slots=True)
class Slice:
    """One rank in one group during one step."""

    calls: list[Wait] = field(default_factory=list)
    own: list[int] = field(default_factory=lambda: [0] * len(FAMILIES))
    elsewhere: dict[str, int] = field(default_factory=dict)  # dimension -> ns waited there


class Member:
    """What one rank measured, by group and step."""

    def __init__(self, replay: Replay, rank: int):
        self.rank = rank
        self.groups: dict[str, Group] = {}
        self.slices: dict[Group, list[Slice]] = {}
        self.steps_own = [replay.own(rank, step) for step in replay.steps[rank]]
        ends = [0, *(step.end for step in replay.steps[rank])]
        self.walls = [end - begin for begin, end in pairwise(ends)]
        own = [0] * len(FAMILIES)
        waited: dict[str, int] = {}
        marks: dict[Group, tuple[list[int], dict[str, int]]] = {}
        for number, step in enumerate(replay.steps[rank]):
            here: dict[Group, tuple[list[int], dict[str, int]]] = {}
            for event in step.events:
                if not isinstance(event, Wait):
                    own[event[0]] += event[1]
                    continue
                group = event.group
                if group not in self.slices:
                    self.groups[group.name] = group
                    self.slices[group] = [Slice() for _ in replay.steps[rank]]
                waited[group.name] = waited.get(group.name, 0) + event.ns
                self.slices[group][number].calls.append(event)
                # A snapshot at the end of the last call only: what made a rank late in a group lies before it.
                here[group] = (own.copy(), waited.copy())
            for group, (own_now, waited_now) in here.items():
                own_then, waited_then = marks.get(group, ([0] * len(FAMILIES), {}))
                slice_ = self.slices[group][number]
                slice_.own = [now - then for now, then in zip(own_now, own_then, strict=True)]
                slice_.elsewhere = {
                    name: ns - waited_then.get(name, 0) for name, ns in waited_now.items() if name != group.name
                }
                marks[group] = (own_now, waited_now)

    def own(self) -> list[int]:
        """ns of own time by family."""
        return [sum(column) for column in zip(*self.steps_own, strict=True)]

    def block(self, steps: slice) -> Member:
        """The same rank, in some of the steps only."""
        part = copy(self)
        part.slices = {group: slices[steps] for group, slices in self.slices.items()}
        part.walls, part.steps_own = self.walls[steps], self.steps_own[steps]
        return part


def least(contributions: Iterable[Words]) -> Words:
    """The MIN all-reduce; a word that some member lacks is absent from its contribution."""
    result: Words = {}
    for words in contributions:
        for key, value in words.items():
            if key not in result or value < result[key]:
                result[key] = value
    return result


def measure(replay: Replay) -> list[Member]:
    """What each rank measured."""
    return [Member(replay, rank) for rank in range(replay.case.ranks)]


def exchange(replay: Replay, options: Options | None = None) -> list[RankWaits]:
    """The ledgers of all ranks after the exchange of one block, which is the whole run."""
    return split_block(replay.case, measure(replay), options)


def split_block(case: Case, members: list[Member], options: Options | None = None) -> list[RankWaits]:
    """What the ranks add to their ledgers when a block of steps has been exchanged."""
    options = options or Options()
    groups = {group for member in members for group in member.slices}
    split: dict[int, list[GroupWaits]] = {member.rank: [] for member in members}
    for group in sorted(groups):
        inside = [members[rank] for rank in group.ranks]
        dimensions = _dimensions(group, inside, options)
        if group.p2p:
            _pipelines(case, group, inside, dimensions, options, split)
        else:
            _collectives(group, inside, dimensions, options, split)
    return [
        RankWaits(
            member.rank,
            {family: ns / 1e9 for family, ns in zip(FAMILIES, member.own(), strict=True)},
            tuple(split[member.rank]),
            steps=len(member.walls),
        )
        for member in members
    ]


def _dimensions(group: Group, members: list[Member], options: Options) -> list[str]:
    """In which other dimensions a member's waits may have made it late in this group.

    All members leave a collective of a larger group together, so what they waited there makes none of them late here.
    """
    if not options.elsewhere:
        return []
    names = sorted({name for member in members for name in member.groups if name != group.name})
    if not options.leave_out or (group.p2p and options.leave_out != "all"):
        return names
    inside = set(group.ranks)
    return [
        name
        for name in names
        if not all(
            name in member.groups and not member.groups[name].p2p and inside <= set(member.groups[name].ranks)
            for member in members
        )
    ]


# -- collectives


def _collectives(group, members: list[Member], dimensions, options: Options, split) -> None:
    """Call by call: ``network = MIN of the waits``, ``behind[rank with the MIN] = own wait - MIN``.

    Words a step: per call ``wait_us << 20 | rank`` and ``-wait_us``; per family the own time, per other dimension the
    time waited there. The late rank of a call was late by ``MAX - MIN``; it shares that out over its excesses
    ``own[family] - MIN`` and ``elsewhere[dimension] - MIN`` of the step.
    """
    words = least(_pack(member, group, dimensions) for member in members)
    for member in members:
        network = 0
        behind: dict[int, int] = {}
        reasons = Reasons(member, dimensions)
        for number, slice_ in enumerate(member.slices[group]):
            late = 0
            for i, call in enumerate(slice_.calls):
                word = words["wait", number, i]
                shortest, last = word >> RANK_BITS, word & ((1 << RANK_BITS) - 1)
                transfer = min(call.ns, shortest * 1000)
                network += transfer
                if last == member.rank:
                    late += (-words["most", number, i] - shortest) * 1000
                elif call.ns > transfer:
                    behind[last] = behind.get(last, 0) + call.ns - transfer
            reasons.add(late, slice_, number, words, options)
        split[member.rank].append(
            GroupWaits(
                group,
                network=network / 1e9,
                behind=_seconds(behind),
                late_own=_seconds(reasons.own),
                late_elsewhere=_seconds(reasons.elsewhere),
                late_unexplained=reasons.unexplained / 1e9,
                late_steps=reasons.steps,
            )
        )


def _pack(member: Member, group: Group, dimensions: list[str]) -> Words:
    words: Words = {}
    for number, slice_ in enumerate(member.slices[group]):
        for i, call in enumerate(slice_.calls):
            words["wait", number, i] = (call.ns // 1000) << RANK_BITS | member.rank
            words["most", number, i] = -(call.ns // 1000)
        _pack_own(words, number, slice_, dimensions)
    return words


def _pack_own(words: Words, number: int, slice_: Slice, dimensions: list[str]) -> None:
    for family, ns in enumerate(slice_.own):
        words["own", number, family] = ns
    for name in dimensions:
        words["elsewhere", number, name] = slice_.elsewhere.get(name, 0)


class Reasons:
    """By what a rank was late in a group, ns, over all steps."""

    def __init__(self, member: Member, dimensions: list[str]):
        self.member = member
        self.dimensions = dimensions
        self.own: dict[str, int] = {}
        self.elsewhere: dict[Group, int] = {}
        self.steps = 0
        self.unexplained = 0

    def add(
        self,
        late: int,
        slice_: Slice,
        number: int,
        words: Words,
        options: Options,
        transfers: tuple[Group, int] | None = None,
    ) -> None:
        """A step in which the rank was ``late`` ns late; ``transfers``: what it is by its own messages' transfers."""
        if late <= 0:
            return
        excess: dict[Any, int] = {}
        for family, ns in enumerate(slice_.own):
            excess[FAMILIES[family]] = ns - (words["own", number, family] if options.excess else 0)
        for name in self.dimensions:
            there = self.member.groups.get(name)
            if there is not None:
                base = words["elsewhere", number, name] if options.excess else 0
                excess[there] = slice_.elsewhere.get(name, 0) - base
        if transfers is not None:
            excess[transfers[0]] = transfers[1]
        total = sum(ns for ns in excess.values() if ns > 0)
        excess = {cause: ns for cause, ns in excess.items() if ns > 0}
        if total < late:
            self.unexplained += late - total
            late = total
        if total <= 0:
            excess, total = {FAMILIES[COMPUTE]: 1}, 1
        by_own = sum(ns for cause, ns in excess.items() if isinstance(cause, str))
        if min(late * by_own // total, by_own) >= LATE_STEP * self.member.walls[number]:
            self.steps += 1
        for cause, ns in excess.items():
            part = late * ns // total
            if isinstance(cause, str):
                self.own[cause] = self.own.get(cause, 0) + part
            else:
                self.elsewhere[cause] = self.elsewhere.get(cause, 0) + part


def _seconds(values: dict) -> dict:
    return {key: ns / 1e9 for key, ns in values.items() if ns > 0}


# -- sends and receives


def _pipelines(case: Case, group, members: list[Member], dimensions, options: Options, split) -> None:
    """Of a pipeline's messages: per link the transfer, per step the bubble, and the busiest stage is late.

    1. The transfer of a link, once for a block of steps. Each end puts the time of its clock into a word of its own (a
       MIN with words that only one member fills is a gather): per message ``issued`` at the sender and ``end`` at the
       receiver. In each direction ``MIN(end - issued) = transfer + offset of the clocks``, met by any message that its
       receiver was already waiting for; the offset cancels in the mean of the two directions. Then
       ``network += min(wait, transfer)`` per wait.
    2. ``pipeline = wait - network`` of a step. The busiest stage waits least, and what it waits is the bubble that the
       schedule costs all of them; the schedule's own bound is ``(p - 1) / m * the least busy time of any stage``, busy
       being compute and the transfers inside it. ``bubble = min(pipeline, max(MIN pipeline, bound))``, and the rest is
       ``behind`` the stage with the MIN.
    3. That stage was late by ``MAX - MIN``, shared out over its excesses as in a collective, with the transfers of its
       own messages as one dimension more.
    """
    floors = _floors(case, group, members, options)
    waits = {
        member.rank: [_step(member, group, number, floors, options) for number in range(len(member.walls))]
        for member in members
    }
    contributions = []
    for member in members:
        words: Words = {}
        for number, slice_ in enumerate(member.slices[group]):
            total, links, _ = waits[member.rank][number]
            pipeline = total - sum(links.values())
            words["pipeline", number] = (pipeline // 1000) << RANK_BITS | member.rank
            words["most", number] = -(pipeline // 1000)
            words["links", number] = sum(links.values())
            words["busy", number] = slice_.own[COMPUTE]
            for peer, ns in waits[member.rank][number][2].items():
                words["peer", number, member.rank, peer] = ns
            _pack_own(words, number, slice_, dimensions)
        contributions.append(words)
    words = least(contributions)
    for member in members:
        reasons = Reasons(member, dimensions)
        links: dict[int, int] = {}
        behind: dict[int, int] = {}
        bubbles = 0
        schedule = 0
        for number, slice_ in enumerate(member.slices[group]):
            total, by_peer, by_peer_rest = waits[member.rank][number]
            for peer, ns in by_peer.items():
                links[peer] = links.get(peer, 0) + ns
            pipeline = total - sum(by_peer.values())
            word = words["pipeline", number]
            shortest, last = (word >> RANK_BITS) * 1000, word & ((1 << RANK_BITS) - 1)
            bound = words["busy", number] * (len(group.ranks) - 1) // case.microbatches if options.bubble else 0
            transfers = (group, sum(by_peer.values()) - words["links", number])
            if options.late_stage == "stage":
                bubble = min(pipeline, max(shortest, bound))
                if last == member.rank:
                    bubble = pipeline
                    reasons.add(
                        max(0, -words["most", number] * 1000 - max(shortest, bound)),
                        slice_,
                        number,
                        words,
                        options,
                        transfers,
                    )
                bubbles += bubble
                schedule += bound
                rest = pipeline - bubble
                if rest > 0:
                    behind[last] = behind.get(last, 0) + rest
                continue
            bubble = min(pipeline, bound)
            net = {
                peer: max(
                    0, ns - (words.get(("peer", number, peer, member.rank), 0) if options.late_stage == "netted" else 0)
                )
                for peer, ns in by_peer_rest.items()
            }
            rest = max(0, min(sum(net.values()), pipeline - bubble))
            bubbles += pipeline - rest
            for peer, ns in net.items():
                if ns > 0 and rest > 0:
                    behind[peer] = behind.get(peer, 0) + rest * ns // sum(net.values())
            late = sum(
                max(0, words.get(("peer", number, peer, member.rank), 0) - by_peer_rest.get(peer, 0))
                for peer in group.ranks
            )
            if options.late_stage == "gross":
                late = sum(words.get(("peer", number, peer, member.rank), 0) for peer in group.ranks)
            reasons.add(late, slice_, number, words, options, transfers)
            # Late for one neighbour because it waited for the other one.
        whole = sum(sum(waits[member.rank][n][1].values()) for n in range(len(member.walls)))
        split[member.rank].append(
            GroupWaits(
                group,
                network=whole / 1e9,
                bubble=bubbles / 1e9,
                schedule=schedule / 1e9,
                behind=_seconds(behind),
                links=_seconds(links),
                late_own=_seconds(reasons.own),
                late_elsewhere=_seconds(reasons.elsewhere),
                late_unexplained=reasons.unexplained / 1e9,
                late_steps=reasons.steps,
            )
        )


def _step(member: Member, group: Group, number: int, floors, options: Options):
    """-> (ns waited, network by peer, the rest by peer) of one step."""
    total, links, rest = 0, {}, {}
    for call in member.slices[group][number].calls:
        assert call.peer is not None
        pair = (min(member.rank, call.peer), max(member.rank, call.peer))
        floor = floors.get(
            call.message if options.floor == "call" else (pair, number if options.floor == "step" else 0), 0
        )
        network = min(call.ns, floor)
        total += call.ns
        links[call.peer] = links.get(call.peer, 0) + network
        rest[call.peer] = rest.get(call.peer, 0) + call.ns - network
    return total, links, rest


WAITED = 10_000
"""ns from which on a receiver waited for a message, so that the message was under way no longer than it had to."""
OFFSETS = 7_000_000_000
"""ns by which the clocks of two neighbours differ in the simulator: no formula may depend on it."""


def _floors(case: Case, group: Group, members: list[Member], options: Options) -> dict:
    """How long a message of a link takes, by what ``options.floor`` says."""
    ends: dict[Message, dict[int, tuple[Wait, int]]] = {}
    for member in members:
        for number, slice_ in enumerate(member.slices[group]):
            count: dict[tuple[int, int], int] = {}
            for call in slice_.calls:
                assert call.message is not None
                way = call.message[:2]
                count[way] = count.get(way, 0) + 1
                if count[way] <= options.messages:
                    ends.setdefault(call.message, {})[member.rank] = (call, number)
    floors: dict = {}
    apart: dict[tuple[int, int], dict[bool, int]] = {}
    for message, both in ends.items():
        if len(both) < 2:
            continue
        (sent, number), (received, _) = both[message.source], both[message.target]
        pair = (min(message[:2]), max(message[:2]))
        ns = min(sent.ns, received.ns)
        if options.floor == "clock":
            skew = OFFSETS * (message.target - message.source)
            forward = message.target > message.source
            here = apart.setdefault(pair, {})
            here[forward] = min(here.get(forward, 1 << 62), received.end - sent.issued + skew)
            if ns >= WAITED and fresh(sent) and fresh(received):
                floors[pair, 0] = min(floors.get((pair, 0), ns), ns)
            continue
        key = message if options.floor == "call" else (pair, number if options.floor == "step" else 0)
        floors[key] = min(floors.get(key, ns), ns)
    for pair, ways in apart.items():
        if len(ways) == 2:
            ns = max(0, sum(ways.values()) // 2)
            floors[pair, 0] = min(floors.get((pair, 0), ns), ns)
    return floors


def fresh(wait: Wait) -> bool:
    """Whether the wait began when its message was issued, not after the wait for another message of its batch."""
    return wait.end - wait.ns - wait.issued < WAITED
