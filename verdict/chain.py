"""Converts the accounts of ranks to the input of the look-through: which rank waited where and for which late rank."""

from __future__ import annotations

from ..ledger.cause_rows import CAUSE_ROWS
from ..ledger.causes import CAUSE_FAMILY
from .accounts import GroupAccount, RankAccount, RunAccount, Seconds
from .lookthrough import Conclusion, Group, GroupWaits, RankWaits, conclude

_WAITS = tuple(row.name for row in CAUSE_ROWS if row.place == "waits" and row.family != "cpu")
UNKNOWN = Group("unknown", ())
"""The group of waits whose group is not recorded."""


def conclusion_of(account: RunAccount) -> Conclusion:
    """What took the seconds of a run, after the look-through of waits for late ranks and other stages."""
    groups = groups_of(account)
    late = _lateness(account)
    return conclude(_rank_waits(rank, groups, late) for rank in account.ranks)


def groups_of(account: RunAccount) -> dict[int, Group]:
    """Key -> group, with those of its ranks that have a ledger here."""
    ranks: dict[int, list[RankAccount]] = {}
    for rank in account.ranks:
        for key in rank.groups:
            ranks.setdefault(key, []).append(rank)
    found = {}
    for key, members in ranks.items():
        first = members[0].groups[key]
        found[key] = Group(first.label, tuple(member.rank for member in members), first.pairwise)
    return found


def _lateness(account: RunAccount) -> dict[int, dict[int, float]]:
    """Key of a group -> rank -> by how much it was late there. Key 0: over all groups."""
    late: dict[int, dict[int, float]] = {0: {rank.rank: sum(rank.late.values()) for rank in account.ranks}}
    for rank in account.ranks:
        for key, group in rank.groups.items():
            by = sum(group.late_own.values()) + sum(group.late_elsewhere.values())
            late.setdefault(key, {})[rank.rank] = by
    return late


def _rank_waits(rank: RankAccount, groups: dict[int, Group], late: dict[int, dict[int, float]]) -> RankWaits:
    own = {
        family: spent
        for family in {CAUSE_FAMILY[cause] for cause in rank.seconds}
        if (
            spent := sum(
                s for cause, s in rank.seconds.items() if CAUSE_FAMILY[cause] == family and cause not in _WAITS
            )
        )
    }
    waits = [_group_waits(group, groups, late.get(key, {}), rank) for key, group in rank.groups.items()]
    return RankWaits(rank.rank, own, (*waits, *_rest(rank, waits, late[0])), rank.newest.node, rank.steps)


def _group_waits(
    group: GroupAccount, groups: dict[int, Group], late: dict[int, float], rank: RankAccount
) -> GroupWaits:
    behind = dict(group.behind)
    if group.pairwise:
        bubble = max(0.0, group.pipeline - group.latency - max(0.0, sum(behind.values()) - group.straggler))
    else:
        bubble = 0.0
        _share_out(behind, group.straggler - sum(behind.values()), late, rank.rank)
    late_own = dict(group.late_own)
    return GroupWaits(
        groups[group.key],
        network=group.network,
        latency=group.latency,
        slowest=group.link,
        queue=group.queue,
        unsplit=0.0,  # `_rest` counts it once per rank: a wait that was unsplit before the first step is startup
        bubble=bubble,
        schedule=_schedule(group, rank),
        behind=behind,
        late_own=late_own,
        late_unexplained=group.late_unexplained,
        late_elsewhere={groups[key]: spent for key, spent in group.late_elsewhere.items() if key in groups},
        late_steps=rank.late_steps,
    )


def _schedule(group: GroupAccount, rank: RankAccount) -> float:
    """What the schedule of a group's pipeline costs a rank. A ledger only has the sum over the rank's pipelines."""
    pipelines = [one for one in rank.groups.values() if one.pairwise]
    waited = sum(one.pipeline - one.latency for one in pipelines)
    if not group.pairwise:
        return 0.0
    return rank.bubble * (group.pipeline - group.latency) / waited if waited > 0 else rank.bubble / len(pipelines)


def _share_out(behind: dict[int, float], rest: float, late: dict[int, float], own: int) -> None:
    """Divides waits for unnamed late ranks among the known late ranks of the group."""
    total = sum(by for rank, by in late.items() if rank != own)
    if rest <= 0 or total <= 0:
        return
    for rank, by in late.items():
        if rank != own and by > 0:
            behind[rank] = behind.get(rank, 0.0) + rest * by / total


def _rest(rank: RankAccount, waits: list[GroupWaits], late: dict[int, float]) -> list[GroupWaits]:
    """The waits that are in no group: those that could not be split, and all waits of a ledger without groups."""
    seconds = rank.seconds
    network = max(0.0, seconds["network"] - sum(one.network for one in waits))
    behind_in = {p2p: sum(sum(one.behind.values()) for one in waits if one.group.p2p == p2p) for p2p in (False, True)}
    # Not in pipelines. A ledger only names some of the late ranks.
    pairs = (group for group in rank.groups.values() if group.pairwise)
    together = sum(min(group.straggler, sum(group.behind.values())) for group in pairs)
    straggler = max(0.0, seconds["straggler"] - behind_in[False] - together)
    stages = sum(one.latency + one.bubble for one in waits if one.group.p2p)
    pipeline = max(0.0, seconds["pipeline"] - stages - (behind_in[True] - together))
    behind: dict[int, float] = {}
    _share_out(behind, straggler, late, rank.rank)
    late_own: Seconds = {} if waits else dict(rank.late)
    unnamed = straggler - sum(behind.values())
    found = [
        GroupWaits(
            UNKNOWN,
            network=network,
            unsplit=max(0.0, seconds["collective"]),
            behind=behind,
            late_own=late_own,
        ),
    ]
    if pipeline > 0:
        found.append(GroupWaits(Group("unknown", (), p2p=True), bubble=pipeline))
    if unnamed > 0:
        found.append(GroupWaits(Group("unnamed", ()), behind={NOBODY: unnamed}))
    return found


NOBODY = -1
"""The number of a late rank that is not known, because it has no ledger here."""
