"""What each rank learns in the exchange: pack, MIN over the members of a group, split.

The result of a rank depends only on what it measured itself, and on MINs of words over the members of its groups.
"""

from __future__ import annotations

from whyidle.verdict.lookthrough import Group, GroupWaits, RankWaits

from .case import FAMILIES, Case
from .member import RANK_BITS, Member, Options, Reasons, Words, containing, least, pack_own, seconds
from .pipelines import split_messages
from .replay import Replay


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
            found = split_messages(case, group, inside, dimensions, options)
        else:
            found = split_collectives(group, inside, dimensions, options)
        for rank, waits in found.items():
            split[rank].append(waits)
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
    """The other dimensions in which a member's waits may have made it late in this group.

    All members leave a collective of a larger group together, so their waits there make none of them late here.
    """
    if not options.elsewhere:
        return []
    left_out = {group.name, *(containing(group, members) if options.leave_out else ())}
    return sorted({name for member in members for name in member.groups} - left_out)


# -- collectives


def split_collectives(
    group: Group, members: list[Member], dimensions: list[str], options: Options
) -> dict[int, GroupWaits]:
    """Call by call: ``network = MIN of the waits``, ``behind[rank with the MIN] = own wait - MIN``.

    Words a step: per call ``wait_us << 20 | rank`` and ``-wait_us``; per family the own time, per other dimension the
    time waited there. The late rank of a call was late by ``MAX - MIN``; it shares that out over its excesses
    ``own[family] - MIN`` and ``elsewhere[dimension] - MIN`` of the step.
    """
    split: dict[int, GroupWaits] = {}
    words = least(_pack(member, group, dimensions) for member in members)
    for member in members:
        network = 0
        behind: dict[int, int] = {}
        reasons = Reasons(member, group, dimensions)
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
            reasons.add(late, number, slice_, words, options)
        split[member.rank] = GroupWaits(group, network=network / 1e9, behind=seconds(behind), **reasons.fields())
    return split


def _pack(member: Member, group: Group, dimensions: list[str]) -> Words:
    words: Words = {}
    for number, slice_ in enumerate(member.slices[group]):
        for i, call in enumerate(slice_.calls):
            words["wait", number, i] = (call.ns // 1000) << RANK_BITS | member.rank
            words["most", number, i] = -(call.ns // 1000)
        pack_own(words, number, slice_, dimensions)
    return words
