"""The look-through: follows waits to what caused them, with an absorbing chain over (rank, group). Pure functions.

A rank that waits for a late rank lost its seconds to what made that rank late. This is either the late rank's own time
(for example a slow disk), or a wait in another group, where again a rank was late or the transfer took long. Each
second of waiting is followed until it ends in a rank's own time, in a transfer, in the bubble of a schedule, or where
nothing more is recorded.

The chain has one state per (rank, group): "this rank was late in this group". From a state,

* the share ``late_own[family]`` of the lateness ends in (family, rank);
* the share ``late_elsewhere[h]`` continues to the rank's own waits in group h. Its waits for late ranks are followed
  first, to the states of those ranks. Its transfers count only as far as they are longer than the least of any member's
  in the same dimension: transfers that all members have make none of them late. The bubble of a pipeline comes before
  the transfers if the whole pipeline is in the group where the rank was late, because its stages have different parts
  of the bubble there. Otherwise the bubble comes last, because the other members are in other pipelines with the same
  bubble. Unsplit waits in h are treated like waits for late ranks, and end in `communication`.

A stage of a pipeline has a bubble of at least ``schedule``. If it has waited less for messages, the rest is ``spare``.
It waits that rest in the next collective of the whole pipeline, for the stage that ends last. So it is taken off the
waits there, once for each rank that waits. A rank that has waited more of its bubble for messages than another member
is not late because of that.

Lateness because of compute, or of recompute, ends in `straggler` (a slow GPU, an uneven batch).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, TypeVar

LATE_BY: dict[str, str] = {"compute": "straggler"}
"""Family of a late rank's own time -> the family to which the ranks that waited for it lost their time."""

TOLERANCE = 1e-9
"""The chain counts as solved when at most this share of all waiting has not reached an end."""
MAX_SWEEPS = 5_000
MAX_WORK = 20_000_000
"""A closed circle, in which each rank is late only because of the next, has no end. The solver stops after this many
sweeps, or after it has passed on this many shares (about 10 s). What is left in the circle stays where it is."""
Key = TypeVar("Key")
OFTEN = 0.5
STEADY = 0.8
RIVAL = 0.5
MOSTLY = 0.8
"""Ranks take turns at being late if four conditions hold. In total they are late in at least OFTEN of the steps. No
rank is late in STEADY of the steps or more. The second-most late rank is late in at least RIVAL times as many steps as
the first. No rank has caused MOSTLY or more of the waits. A rank that saves three times is late in three steps,
but by far more than any rank that is late by a little in every other step."""


class Group(NamedTuple):
    """Ranks that communicate. ``name`` (the mesh dimension) distinguishes groups with the same ranks."""

    name: str
    ranks: tuple[int, ...]
    p2p: bool = False  # sends and receives, not collectives


class Culprit(NamedTuple):
    """What took the seconds: a rank's own time, or a group's transfers. If both are None, neither can be named."""

    family: str
    rank: int | None = None
    group: Group | None = None


@dataclass(frozen=True, slots=True)
class GroupWaits:
    """The waits of one rank in one group over a window, in seconds, and what made the rank late there.

    ``network + latency + queue + unsplit + bubble + sum(behind)`` is the total of its waits in the group.
    """

    group: Group
    network: float = 0.0
    unsplit: float = 0.0
    bubble: float = 0.0
    """Point-to-point: waits that no late rank caused; even the stage that waited least had to wait this long."""
    schedule: float = 0.0
    """Point-to-point: what the schedule costs with even microbatches, (p - 1) / m of the least busy stage's time."""
    behind: Mapping[int, float] = field(default_factory=dict)
    """Late rank -> how long this rank waited for it."""
    links: Mapping[int, float] = field(default_factory=dict)
    """Point-to-point: peer -> its part of ``network``."""
    late_own: Mapping[str, float] = field(default_factory=dict)
    """Family -> how late this rank was through its own time. Only the ratios to ``late_elsewhere`` count."""
    late_elsewhere: Mapping[Group, float] = field(default_factory=dict)
    """Group -> how late this rank was through its waits there. Point-to-point: the group itself may be a key, and then
    stands for its transfers."""
    late_unexplained: float = 0.0
    """How late it was for no recorded reason. This stays `straggler` (or `pipeline`) of this rank."""
    late_steps: int = 0
    """In how many steps the rank's own time made it late by at least LATE_STEP (ledger/waits.py) of the step."""
    latency: float = 0.0
    """Point-to-point: what transfers, including those of other ranks, cost beyond the waits for own messages."""
    slowest: tuple[int, int] | None = None
    """The two ranks of the link that caused ``latency``; None: the whole group."""
    queue: float = 0.0
    """The part of its transfers in which threads of ranks got no CPU. `RankWaits.own` has these seconds, as `cpu`."""

    @property
    def spare(self) -> float:
        """The part of ``schedule`` that the rank did not wait for messages, but later in a collective."""
        return max(0.0, self.schedule - self.bubble)

    @property
    def transfers(self) -> float:
        """All transfers, including the time in which threads got no CPU."""
        return self.network + self.latency + self.queue


@dataclass(frozen=True, slots=True)
class RankWaits:
    """One rank over a window: seconds of its own time by family, and its waits by group."""

    rank: int
    own: Mapping[str, float]
    groups: tuple[GroupWaits, ...] = ()
    node: str = ""
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Where the seconds of a run went. ``charged`` adds up to all own time and all waits."""

    charged: Mapping[Culprit, float]
    waited: Mapping[Culprit, float]
    """The part of ``charged`` that ranks spent waiting, for the culprit or in its transfers."""
    nodes: Mapping[int, str]
    missing: frozenset[int]
    """Late ranks without a ledger, so that what made them late is not known."""
    steps: int
    late_steps: Mapping[int, int]
    """Rank -> in how many steps its own time made it late for some group."""
    schedule: float
    """What the schedules of pipelines cost with even microbatches. Show it beside ``seconds["pipeline"]``."""
    open: float
    """Seconds in closed circles, which stay `straggler` or `pipeline`."""

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per family."""
        total: dict[str, float] = {}
        for culprit, spent in self.charged.items():
            total[culprit.family] = total.get(culprit.family, 0.0) + spent
        return total

    @property
    def late_ends(self) -> float:
        """The seconds for which ranks waited for ranks on which a transfer had ended later, as on the receiving side of
        a link that is slow in one direction."""
        return sum(spent for one, spent in self.waited.items() if one.family == "network" and one.rank is not None)

    def culprits(self) -> list[tuple[Culprit, float]]:
        """The culprits that can be named, most seconds first. Compute and bubbles have no culprit."""
        named = [
            (culprit, spent)
            for culprit, spent in self.charged.items()
            if culprit.family not in ("compute", "pipeline") and (culprit.rank is not None or culprit.group is not None)
        ]
        return sorted(named, key=lambda item: (-item[1], item[0].family, item[0].rank or 0, item[0].group or ()))

    def take_turns(self, family: str) -> bool:
        """Whether ranks take turns at being late because of ``family``; see OFTEN, STEADY, RIVAL and MOSTLY."""
        if family in ("network", "communication", "pipeline"):
            return False
        caused = [spent for one, spent in self.waited.items() if one.family == family and one.rank is not None]
        if caused and max(caused) >= MOSTLY * sum(caused):
            return False
        late = sorted(self.late_steps.values(), reverse=True)
        if len(late) < 2 or sum(late) < OFTEN * self.steps:
            return False
        return late[0] < STEADY * self.steps and late[1] >= RIVAL * late[0]


State = tuple[int, int]
"""(late rank, number of the group in which it was late)."""
Shares = list[tuple[int, float]]
_Short = tuple[str, bool, int, int]


def conclude(ranks: Iterable[RankWaits]) -> Conclusion:
    """Charges each second of each rank to what took it."""
    by_rank = {rank.rank: rank for rank in ranks}
    members = Members(by_rank.values())
    chain = _Chain(by_rank.values(), members)
    charged: dict[Culprit, float] = {}
    start: dict[int, float] = {}
    late_steps: dict[int, int] = {}
    for rank in by_rank.values():
        for family, spent in rank.own.items():
            _add(charged, Culprit(family, rank.rank), spent)
        for waits in rank.groups:
            late_steps[rank.rank] = max(late_steps.get(rank.rank, 0), waits.late_steps)
            for late, spent in members.behind(rank.rank, waits).items():
                _add(start, chain.state(late, waits.group), spent)
    waited, left = chain.follow(start)
    for rank in by_rank.values():
        for waits in rank.groups:
            _add(waited, Culprit("communication", None, waits.group), waits.unsplit)
            spare = sum(waits.behind.values()) - sum(members.behind(rank.rank, waits).values())
            _add(waited, Culprit("pipeline"), waits.bubble + spare)
            for culprit, spent in _transfers(rank.rank, waits):
                _add(waited, culprit, spent)
    for culprit, spent in waited.items():
        _add(charged, culprit, spent)
    return Conclusion(
        charged=charged,
        waited=waited,
        nodes={rank.rank: rank.node for rank in by_rank.values()},
        missing=frozenset(rank for rank in chain.late_ranks() if rank not in by_rank),
        steps=max((rank.steps for rank in by_rank.values()), default=0),
        late_steps=late_steps,
        schedule=sum(waits.schedule for rank in by_rank.values() for waits in rank.groups),
        open=left,
    )


def link(group: Group, rank: int, peer: int) -> Group:
    """The group of the two ranks of a link in a point-to-point group."""
    return Group(group.name, (min(rank, peer), max(rank, peer)), p2p=True)


def _add(totals: dict[Key, float], key: Key, amount: float) -> None:
    if amount > 0:
        totals[key] = totals.get(key, 0.0) + amount


def _transfers(rank: int, waits: GroupWaits) -> list[tuple[Culprit, float]]:
    """The transfers of a rank in a group: for collectives as a whole, for point-to-point by link."""
    rest = max(0.0, waits.network - sum(waits.links.values()))
    ends = [(Culprit("network", None, link(waits.group, rank, peer)), spent) for peer, spent in waits.links.items()]
    slowest = link(waits.group, *waits.slowest) if waits.slowest is not None else waits.group
    return [
        *ends,
        (Culprit("network", None, waits.group), rest),
        (Culprit("network", None, slowest), waits.latency),
    ]


class Members:
    """What is known about the members of a group in their other groups."""

    def __init__(self, ranks: Iterable[RankWaits]):
        self._pipelines: dict[int, list[GroupWaits]] = {}
        self._transfers: dict[int, dict[tuple[str, bool], float]] = {}  # rank -> by name of the group, point-to-point
        for rank in ranks:
            self._pipelines[rank.rank] = [waits for waits in rank.groups if waits.spare > 0]
            self._transfers[rank.rank] = {(waits.group.name, waits.group.p2p): waits.transfers for waits in rank.groups}
        self._most: dict[_Short, float] = {}
        self._least: dict[tuple[_Short, str, bool], float] = {}
        self._inside: dict[tuple[_Short, _Short], bool] = {}

    def behind(self, rank: int, waits: GroupWaits) -> Mapping[int, float]:
        """Late rank -> how long a rank waited for it, without the bubble of its pipeline."""
        whole = sum(waits.behind.values())
        pipelines = self._pipelines[rank]
        if not pipelines or waits.group.p2p or whole <= 0:
            return waits.behind
        spare = sum(one.spare for one in pipelines if self.inside(one.group, waits.group))
        return {late: max(0.0, 1.0 - spare / whole) * spent for late, spent in waits.behind.items()}

    def inside(self, inner: Group, outer: Group) -> bool:
        """Whether all ranks of ``inner`` are in ``outer``."""
        key = _short(inner), _short(outer)
        if key not in self._inside:
            self._inside[key] = set(inner.ranks) <= set(outer.ranks)
        return self._inside[key]

    def least_transfers(self, outer: Group, inner: Group) -> float:
        """The least transfers of any member of ``outer`` in its group of the dimension of ``inner``."""
        key = _short(outer), inner.name, inner.p2p
        if key not in self._least:
            known = [self._transfers[rank] for rank in outer.ranks if rank in self._transfers]
            self._least[key] = min([one.get(key[1:], 0.0) for one in known], default=0.0)
        return self._least[key]

    def more_bubble(self, outer: Group, pipeline: GroupWaits) -> float:
        """How much more of its bubble a stage has waited for messages than a member of ``outer``: at most this much.

        It has waited for messages that much longer than that member, and is not late because of it.
        """
        if outer.p2p or not pipeline.group.p2p:
            return 0.0
        key = _short(outer)
        if key not in self._most:
            spare = [sum(one.spare for one in self._pipelines.get(rank, ())) for rank in outer.ranks]
            self._most[key] = max(spare, default=0.0)
        return max(0.0, self._most[key] - pipeline.spare)


def _short(group: Group) -> _Short:
    """Identifies a group, because no rank is in two groups of one name and kind."""
    return group.name, group.p2p, group.ranks[0] if group.ranks else -1, len(group.ranks)


class _Chain:
    """The absorbing chain. States and ends have numbers, because hashing a group of a thousand ranks takes as long as a
    sweep over a rank's waits."""

    def __init__(self, ranks: Iterable[RankWaits], members: Members):
        self._members = members
        self._groups: dict[Group, int] = {}
        self._numbers: dict[State, int] = {}
        self._states: list[tuple[int, Group]] = []
        self._waits: dict[State, GroupWaits] = {}
        self._ends: dict[Culprit, int] = {}
        for rank in ranks:
            for waits in rank.groups:
                self._waits[rank.rank, self._group(waits.group)] = waits

    def _group(self, group: Group) -> int:
        return self._groups.setdefault(group, len(self._groups))

    def state(self, rank: int, group: Group) -> int:
        """The number of the state "this rank was late in this group"."""
        return self._state(rank, group, self._group(group))

    def _state(self, rank: int, group: Group, number: int) -> int:
        found = self._numbers.get((rank, number))
        if found is None:
            found = self._numbers[rank, number] = len(self._states)
            self._states.append((rank, group))
        return found

    def late_ranks(self) -> set[int]:
        """The ranks of all states that have been reached."""
        return {rank for rank, _ in self._states}

    def follow(self, start: Mapping[int, float]) -> tuple[dict[Culprit, float], float]:
        """Follows seconds from their states to their ends -> (seconds by culprit, seconds left in circles)."""
        nexts, ends = self._rows()
        moving = [start.get(state, 0.0) for state in range(len(nexts))]
        passed = [0.0] * len(nexts)
        left = sum(moving)
        enough = TOLERANCE * left
        sweeps = work = 0
        while left > enough and sweeps < MAX_SWEEPS and work < MAX_WORK:
            sweeps += 1
            then = [0.0] * len(nexts)
            for state, spent in enumerate(moving):
                if spent:
                    passed[state] += spent
                    row = nexts[state]
                    work += len(row) + 1
                    for target, share in row:
                        then[target] += spent * share
            moving = then
            left = sum(moving)
        ended: dict[int, float] = {}
        for spent, row in zip(passed, ends, strict=True):
            for end, share in row:
                _add(ended, end, spent * share)
        for state, spent in enumerate(moving):
            _add(ended, self._end(_unexplained(*self._states[state])), spent)
        culprits = list(self._ends)
        return {culprits[end]: spent for end, spent in ended.items()}, left

    def _rows(self) -> tuple[list[Shares], list[Shares]]:
        """For each state, where its seconds go: to other states, and to ends."""
        nexts: list[Shares] = []
        ends: list[Shares] = []
        while len(nexts) < len(self._states):  # a row may add states
            to_states, to_ends = self._row(len(nexts))
            nexts.append(to_states)
            ends.append(to_ends)
        return nexts, ends

    def _end(self, culprit: Culprit) -> int:
        return self._ends.setdefault(culprit, len(self._ends))

    def _row(self, state: int) -> tuple[Shares, Shares]:
        """Where the lateness of a state comes from: (shares of other states, shares of ends). They add up to 1."""
        rank, group = self._states[state]
        unexplained = self._end(_unexplained(rank, group))
        waits = self._waits.get((rank, self._groups[group]))
        ends: dict[int, float] = {}
        nexts: dict[int, float] = {}
        if waits is None:
            return [], [(unexplained, 1.0)]
        _add(ends, unexplained, waits.late_unexplained)
        for family, weight in waits.late_own.items():
            _add(ends, self._end(Culprit(LATE_BY.get(family, family), rank)), weight)
        for elsewhere, weight in waits.late_elsewhere.items():
            there = self._waits.get((rank, self._group(elsewhere)))
            if there is None:
                _add(ends, unexplained, weight)
                continue
            for target, share in followed(rank, group, there, weight, self._members):
                if isinstance(target, int):
                    _add(nexts, self._state(target, elsewhere, self._groups[elsewhere]), share)
                else:
                    _add(ends, self._end(target), share)
        total = sum(nexts.values()) + sum(ends.values())
        if total <= 0:
            only_bubble = any(weight > 0 for weight in waits.late_elsewhere.values())
            return [], [(self._end(Culprit("pipeline")) if only_bubble else unexplained, 1.0)]
        return [(to, spent / total) for to, spent in nexts.items()], [(to, spent / total) for to, spent in ends.items()]


def _unexplained(rank: int, group: Group) -> Culprit:
    return Culprit("pipeline" if group.p2p else "straggler", rank)


def followed(
    rank: int, group: Group, there: GroupWaits, seconds: float, members: Members
) -> list[tuple[int | Culprit, float]]:
    """Divides seconds by which a rank was late in ``group``, because it waited elsewhere, into late ranks and ends.

    Seconds that are bubble which other members wait in a later collective are left out.
    """
    if there.group == group:
        return _share_out(rank, there, seconds, transfers_only=True)
    return _share_out(
        rank,
        there,
        seconds,
        bubble_last=not members.inside(there.group, group),
        most_transfers=max(0.0, there.transfers - members.least_transfers(group, there.group)),
        left_out=members.more_bubble(group, there),
    )


def _share_out(
    rank: int,
    waits: GroupWaits,
    excess: float,
    *,
    bubble_last: bool = False,
    transfers_only: bool = False,
    most_transfers: float = inf,
    left_out: float = 0.0,
) -> list[tuple[int | Culprit, float]]:
    """Divides ``excess`` seconds of a rank's waits in a group into those for late ranks and ends.

    ``most_transfers``: the most that transfers may have. ``left_out``: how much bubble is left out.
    """
    behind: list[tuple[int | Culprit, float]] = [
        *waits.behind.items(),
        (Culprit("communication", None, waits.group), waits.unsplit),
    ]
    bubble: list[tuple[int | Culprit, float]] = [(Culprit("pipeline"), waits.bubble)]
    transfers: list[tuple[int | Culprit, float]] = [*_transfers(rank, waits), (Culprit("cpu", rank), waits.queue)]
    kinds = [behind, transfers, bubble] if bubble_last else [behind, bubble, transfers]
    rest, found = excess, excess
    shares: list[tuple[int | Culprit, float]] = []
    for items in [transfers] if transfers_only else kinds:
        size = sum(spent for _, spent in items)
        taken = min(size, rest, most_transfers) if items is transfers else min(size, rest)
        rest -= taken
        if items is bubble:
            found -= min(taken, left_out)
            taken = max(0.0, taken - left_out)
        shares += [(target, taken * spent / size) for target, spent in items if taken > 0 and spent > 0]
    whole = sum(spent for _, spent in shares)
    if whole <= 0:
        return [] if found < excess else [(_unexplained(rank, waits.group), excess)]
    return [(target, found * spent / whole) for target, spent in shares]
