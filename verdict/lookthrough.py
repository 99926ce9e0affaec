"""Looks through waits to what caused them: an absorbing chain over (rank, group). Pure functions.

A rank that waits behind a late one lost its seconds to what made that rank late: its own time (a slow disk), or a wait
in another group, where again some rank was late, or the transfer took long. Each second of waiting is followed until
it ends in somebody's own time, in a transfer, in the schedule's bubble, or where the record ends.

The chain has one state per (rank, group): "this rank was late in this group". From there

* its share ``late_own[family]`` of the lateness ends in (family, rank);
* its share ``late_elsewhere[h]`` goes on to the rank's own waits in group h. The waits behind others are followed first
  (to their states), then the bubble, and the transfer last: every member waits for a transfer, so an excess of waiting
  over the other members is more likely a wait behind somebody. A part of the waits in h that could not be split stands
  with the waits behind others, and ends in `communication`.

Lateness by compute ends in `straggler` (a slow GPU, an uneven batch), and so does recomputation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

LATE_BY: dict[str, str] = {"compute": "straggler", "lost": "straggler"}
"""Family of a late rank's own time -> the family that those who waited for it lost their time to."""

TOLERANCE = 1e-9
"""The share of all waiting that may still be under way when the chain counts as solved."""
MAX_SWEEPS = 2_000
"""A closed circle (each rank late only because of the next) never ends: what is left in it stays where it is."""
OFTEN = 0.5
STEADY = 0.8
RIVAL = 0.5
"""Ranks take turns if all together are late in OFTEN of the steps, none of them in STEADY of the steps, and a second
one in more than RIVAL of the steps in which the first one is."""


class Group(NamedTuple):
    """The ranks that communicate. ``name`` tells apart groups of the same ranks: the mesh dimension."""

    name: str
    ranks: tuple[int, ...]
    p2p: bool = False  # sends and receives, not collectives


class Culprit(NamedTuple):
    """Who took the seconds: a rank by its own time, or a group by its transfers. Both None: nobody can be named."""

    family: str
    rank: int | None = None
    group: Group | None = None


@dataclass(frozen=True, slots=True)
class GroupWaits:
    """The waits of one rank in one group over a window, in seconds, and what made the rank late there.

    ``network + unsplit + bubble + sum(behind)`` is all of its waiting in the group.
    """

    group: Group
    network: float = 0.0
    unsplit: float = 0.0
    bubble: float = 0.0
    """Point-to-point: what even the stage that waited least had to wait, and nobody is late for."""
    schedule: float = 0.0
    """Point-to-point: what the schedule costs with even microbatches, (p - 1) / m of the least busy stage's time. A
    part of it may be waited in a collective after the last message."""
    behind: Mapping[int, float] = field(default_factory=dict)
    """Late rank -> how long this rank waited for it."""
    links: Mapping[int, float] = field(default_factory=dict)
    """Point-to-point: peer -> its part of ``network``."""
    late_own: Mapping[str, float] = field(default_factory=dict)
    """Family -> by how much this rank was late through its own time. Only ratios count, with ``late_elsewhere``."""
    late_elsewhere: Mapping[Group, float] = field(default_factory=dict)
    """Group -> by how much this rank was late through its waits there (point-to-point: the group itself as well,
    which then means its transfers)."""
    late_unexplained: float = 0.0
    """By how much it was late for no reason on record: this stays `straggler` (or `pipeline`) of this rank."""
    late_steps: int = 0
    """In how many steps the rank's own time made it late by more than a trifle."""


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
    """Where the seconds of a run went. All of ``charged`` adds up to all own time and all waiting."""

    charged: Mapping[Culprit, float]
    waited: Mapping[Culprit, float]
    """The part of ``charged`` that ranks spent waiting, whether for the culprit or in its transfers."""
    nodes: Mapping[int, str]
    missing: frozenset[int]
    """Late ranks without a ledger: what made them late is not known."""
    steps: int
    late_steps: Mapping[int, int]
    """Rank -> in how many steps its own time made it late for some group."""
    schedule: float
    """What the schedules of pipelines cost with even microbatches: to be shown beside ``seconds["pipeline"]``."""
    open: float
    """Seconds that went round in circles and stayed `straggler` or `pipeline`."""

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per family."""
        total: dict[str, float] = {}
        for culprit, spent in self.charged.items():
            total[culprit.family] = total.get(culprit.family, 0.0) + spent
        return total

    def culprits(self) -> list[tuple[Culprit, float]]:
        """Who can be named, most seconds first. Nobody is to blame for compute and for bubbles."""
        named = [
            (culprit, spent)
            for culprit, spent in self.charged.items()
            if culprit.family not in ("compute", "pipeline") and (culprit.rank is not None or culprit.group is not None)
        ]
        return sorted(named, key=lambda item: (-item[1], item[0].family, item[0].rank or 0, item[0].group or ()))

    def take_turns(self, family: str) -> bool:
        """Whether ranks are late by a family in many steps, but not always the same rank."""
        if family in ("network", "communication", "pipeline"):
            return False
        late = sorted(self.late_steps.values(), reverse=True)
        if len(late) < 2 or sum(late) < OFTEN * self.steps:
            return False
        return late[0] < STEADY * self.steps and late[1] >= RIVAL * late[0]


State = tuple[int, Group]
Row = tuple[list[tuple[State, float]], list[tuple[Culprit, float]]]
"""Where a state leads: shares to other states, and shares that end. They add up to 1."""


def conclude(ranks: Iterable[RankWaits]) -> Conclusion:
    """Charges each second of each rank to what took it."""
    by_rank = {rank.rank: rank for rank in ranks}
    known = {(rank.rank, waits.group): waits for rank in by_rank.values() for waits in rank.groups}
    charged: dict[Culprit, float] = {}
    waited: dict[Culprit, float] = {}
    start: dict[State, float] = {}
    for rank in by_rank.values():
        for family, spent in rank.own.items():
            _add(charged, Culprit(family, rank.rank), spent)
        for waits in rank.groups:
            for culprit, spent in _ends(rank.rank, waits):
                _add(waited, culprit, spent)
            for late, spent in waits.behind.items():
                _add(start, (late, waits.group), spent)
    ends, left = _follow(start, known)
    for culprit, spent in ends.items():
        _add(waited, culprit, spent)
    for culprit, spent in waited.items():
        _add(charged, culprit, spent)
    late_steps: dict[int, int] = {}
    for (rank, _), waits in known.items():
        late_steps[rank] = max(late_steps.get(rank, 0), waits.late_steps)
    steps = max((rank.steps for rank in by_rank.values()), default=0)
    missing = frozenset(rank for rank, _ in start if rank not in by_rank)
    nodes = {rank.rank: rank.node for rank in by_rank.values()}
    schedule = sum(waits.schedule for waits in known.values())
    return Conclusion(charged, waited, nodes, missing, steps, late_steps, schedule, left)


def _ends(rank: int, waits: GroupWaits) -> list[tuple[Culprit, float]]:
    """What needs no looking through: transfers, bubble, and what could not be split."""
    ends = [
        (Culprit("communication", None, waits.group), waits.unsplit),
        (Culprit("pipeline", None, None), waits.bubble),
    ]
    return ends + _transfers(rank, waits)


def _transfers(rank: int, waits: GroupWaits) -> list[tuple[Culprit, float]]:
    if not waits.group.p2p:
        return [(Culprit("network", None, waits.group), waits.network)]
    rest = max(0.0, waits.network - sum(waits.links.values()))
    ends = [(Culprit("network", None, link(waits.group, rank, peer)), spent) for peer, spent in waits.links.items()]
    return [*ends, (Culprit("network", None, waits.group), rest)]


def link(group: Group, rank: int, peer: int) -> Group:
    """The two ends of a link of a point-to-point group."""
    return Group(group.name, (min(rank, peer), max(rank, peer)), p2p=True)


def _add(totals: dict, key: object, amount: float) -> None:
    if amount > 0:
        totals[key] = totals.get(key, 0.0) + amount


def _unexplained(state: State) -> Culprit:
    rank, group = state
    return Culprit("pipeline" if group.p2p else "straggler", rank)


def row(state: State, known: Mapping[State, GroupWaits]) -> Row:
    """Where the lateness of a rank in a group comes from, as shares."""
    rank, group = state
    waits = known.get(state)
    weights: list[tuple[Group | str, float]] = []
    if waits is not None:
        weights = [item for item in (*waits.late_own.items(), *waits.late_elsewhere.items()) if item[1] > 0]
    unexplained = waits.late_unexplained if waits is not None else 0.0
    total = sum(weight for _, weight in weights) + unexplained
    if total <= 0:
        return [], [(_unexplained(state), 1.0)]
    nexts: list[tuple[State, float]] = []
    ends: list[tuple[Culprit, float]] = [(_unexplained(state), unexplained / total)] if unexplained > 0 else []
    for cause, weight in weights:
        share = weight / total
        if isinstance(cause, str):
            ends.append((Culprit(LATE_BY.get(cause, cause), rank), share))
            continue
        there = known.get((rank, cause))
        if there is None:
            ends.append((_unexplained(state), share))
            continue
        _share_out(rank, there, weight, share, nexts, ends, transfers_only=cause == group)
    return nexts, ends


def _share_out(
    rank: int,
    waits: GroupWaits,
    excess: float,
    share: float,
    nexts: list[tuple[State, float]],
    ends: list[tuple[Culprit, float]],
    *,
    transfers_only: bool = False,
) -> None:
    """Shares ``share`` out over a rank's waits in a group, of which ``excess`` seconds made it late elsewhere."""
    behind = sum(waits.behind.values())
    kinds = [
        (behind + waits.unsplit, [*waits.behind.items(), (None, waits.unsplit)]),
        (waits.bubble, [(Culprit("pipeline"), waits.bubble)]),
        (waits.network, _transfers(rank, waits)),
    ]
    if transfers_only:
        kinds = kinds[2:]
    taken: list[float] = []
    rest = excess
    for size, _ in kinds:
        taken.append(min(size, rest))
        rest -= taken[-1]
    whole = sum(taken)
    if whole <= 0:
        ends.append((_unexplained((rank, waits.group)), share))
        return
    for part, (size, items) in zip(taken, kinds, strict=True):
        if part <= 0:
            continue
        for target, spent in items:
            portion = share * part / whole * spent / size
            if portion <= 0:
                continue
            if isinstance(target, int):
                nexts.append(((target, waits.group), portion))
            else:
                ends.append((target or Culprit("communication", None, waits.group), portion))


def _follow(start: Mapping[State, float], known: Mapping[State, GroupWaits]) -> tuple[dict[Culprit, float], float]:
    """Follows all seconds to their ends -> (seconds by culprit, seconds that were left in circles)."""
    ended: dict[Culprit, float] = {}
    rows: dict[State, Row] = {}
    moving = dict(start)
    enough = TOLERANCE * sum(moving.values())
    sweeps = 0
    while moving and (left := sum(moving.values())) > enough and sweeps < MAX_SWEEPS:
        sweeps += 1
        then: dict[State, float] = {}
        for state, spent in moving.items():
            known_row = rows.get(state)
            if known_row is None:
                known_row = rows[state] = row(state, known)
            nexts, ends = known_row
            for target, share in nexts:
                then[target] = then.get(target, 0.0) + spent * share
            for culprit, share in ends:
                ended[culprit] = ended.get(culprit, 0.0) + spent * share
        moving = then
    left = sum(moving.values())
    for state, spent in moving.items():
        _add(ended, _unexplained(state), spent)
    return ended, left
