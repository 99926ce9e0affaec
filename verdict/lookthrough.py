"""Looks through waits to what caused them: an absorbing chain over (rank, group). Pure functions.

A rank that waits behind a late one lost its seconds to what made that rank late: its own time (a slow disk), or a wait
in another group, where again some rank was late, or the transfer took long. Each second of waiting is followed until
it ends in somebody's own time, in a transfer, in the schedule's bubble, or where the record ends.

The chain has one state per (rank, group): "this rank was late in this group". From there

* its share ``late_own[family]`` of the lateness ends in (family, rank);
* its share ``late_elsewhere[h]`` goes on to the rank's own waits in group h. The waits behind others are followed first
  (to their states), and the transfers later: every member waits for transfers, so an excess of waiting over the other
  members is more likely a wait behind somebody. The bubble of a pipeline comes before the transfers if the whole
  pipeline is in the group where the rank was late (its stages have different parts of the bubble there), and last if
  it is not: other members then have pipelines of their own, with the same bubble. A part of the waits in h that could
  not be split stands with the waits behind others, and ends in `communication`.

Lateness by compute ends in `straggler` (a slow GPU, an uneven batch), and so does recomputation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

LATE_BY: dict[str, str] = {"compute": "straggler", "lost": "straggler"}
"""Family of a late rank's own time -> the family that those who waited for it lost their time to."""

TOLERANCE = 1e-9
"""The share of all waiting that may still be under way when the chain counts as solved."""
MAX_SWEEPS = 5_000
MAX_WORK = 20_000_000
"""A closed circle (each rank late only because of the next) never ends: after so many sweeps, or so many shares passed
on (some 10 s), what is left in it stays where it is."""
Key = TypeVar("Key")
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

    ``network + latency + unsplit + bubble + sum(behind)`` is all of its waiting in the group.
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
    latency: float = 0.0
    """Point-to-point: what transfers cost beyond the waits for this rank's own messages, those of other ranks too."""
    slowest: tuple[int, int] | None = None
    """The two ranks of the link that ``latency`` is put down to; None: the whole group."""


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


State = tuple[int, int]
"""A rank that was late, and the number of the group in which it was."""
Shares = list[tuple[int, float]]


def conclude(ranks: Iterable[RankWaits]) -> Conclusion:
    """Charges each second of each rank to what took it."""
    by_rank = {rank.rank: rank for rank in ranks}
    chain = _Chain(by_rank.values())
    charged: dict[Culprit, float] = {}
    start: dict[int, float] = {}
    late_steps: dict[int, int] = {}
    for rank in by_rank.values():
        for family, spent in rank.own.items():
            _add(charged, Culprit(family, rank.rank), spent)
        for waits in rank.groups:
            late_steps[rank.rank] = max(late_steps.get(rank.rank, 0), waits.late_steps)
            for late, spent in waits.behind.items():
                _add(start, chain.state(late, waits.group), spent)
    waited, left = chain.follow(start)
    for rank in by_rank.values():
        for waits in rank.groups:
            _add(waited, Culprit("communication", None, waits.group), waits.unsplit)
            _add(waited, Culprit("pipeline"), waits.bubble)
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
    """The two ends of a link of a point-to-point group."""
    return Group(group.name, (min(rank, peer), max(rank, peer)), p2p=True)


def _add(totals: dict[Key, float], key: Key, amount: float) -> None:
    if amount > 0:
        totals[key] = totals.get(key, 0.0) + amount


def _transfers(rank: int, waits: GroupWaits) -> list[tuple[Culprit, float]]:
    """The transfers of a rank in a group: of a collective's group, of each link of a pipeline."""
    rest = max(0.0, waits.network - sum(waits.links.values()))
    ends = [(Culprit("network", None, link(waits.group, rank, peer)), spent) for peer, spent in waits.links.items()]
    slowest = link(waits.group, *waits.slowest) if waits.slowest is not None else waits.group
    return [
        *ends,
        (Culprit("network", None, waits.group), rest),
        (Culprit("network", None, slowest), waits.latency),
    ]


class _Chain:
    """The absorbing chain. States and ends have numbers: to hash a group of a thousand ranks takes as long as a sweep
    over a rank's waits."""

    def __init__(self, ranks: Iterable[RankWaits]):
        self._groups: dict[Group, int] = {}
        self._inner: dict[tuple[int, int], bool] = {}
        self._numbers: dict[State, int] = {}
        self._states: list[tuple[int, Group]] = []
        self._waits: dict[State, GroupWaits] = {}
        self._ends: dict[Culprit, int] = {}
        self._rows: dict[int, tuple[Shares, Shares]] = {}
        for rank in ranks:
            for waits in rank.groups:
                self._waits[rank.rank, self._group(waits.group)] = waits

    def _group(self, group: Group) -> int:
        return self._groups.setdefault(group, len(self._groups))

    def _inside(self, inner: Group, outer: Group) -> bool:
        """Whether all ranks of a group are in another one."""
        key = self._groups[inner], self._groups[outer]
        found = self._inner.get(key)
        if found is None:
            found = self._inner[key] = set(inner.ranks) <= set(outer.ranks)
        return found

    def state(self, rank: int, group: Group) -> int:
        """The number of "this rank was late in this group"."""
        return self._state(rank, group, self._group(group))

    def _state(self, rank: int, group: Group, number: int) -> int:
        found = self._numbers.get((rank, number))
        if found is None:
            found = self._numbers[rank, number] = len(self._states)
            self._states.append((rank, group))
        return found

    def late_ranks(self) -> set[int]:
        """The ranks of all states that were reached."""
        return {rank for rank, _ in self._states}

    def follow(self, start: Mapping[int, float]) -> tuple[dict[Culprit, float], float]:
        """Follows seconds from their states to their ends -> (seconds by culprit, seconds that go in circles)."""
        moving = dict(start)
        ended: dict[int, float] = {}
        enough = TOLERANCE * sum(moving.values())
        sweeps = work = 0
        left = sum(moving.values())
        while left > enough and sweeps < MAX_SWEEPS and work < MAX_WORK:
            sweeps += 1
            then: dict[int, float] = {}
            for state, spent in moving.items():
                row = self._rows.get(state)
                if row is None:
                    row = self._rows[state] = self._row(state)
                for target, share in row[0]:
                    then[target] = then.get(target, 0.0) + spent * share
                for end, share in row[1]:
                    ended[end] = ended.get(end, 0.0) + spent * share
                work += len(row[0]) + 1
            moving = then
            left = sum(moving.values())
        for state, spent in moving.items():
            _add(ended, self._end(_unexplained(*self._states[state])), spent)
        culprits = list(self._ends)
        return {culprits[end]: spent for end, spent in ended.items()}, left

    def _end(self, culprit: Culprit) -> int:
        return self._ends.setdefault(culprit, len(self._ends))

    def _row(self, state: int) -> tuple[Shares, Shares]:
        """Where the lateness of a rank in a group comes from: shares of other states, and of ends. They add up to 1."""
        rank, group = self._states[state]
        waits = self._waits.get((rank, self._groups[group]))
        ends: dict[int, float] = {}
        nexts: dict[int, float] = {}
        total = 0.0
        if waits is not None:
            total = sum((*waits.late_own.values(), *waits.late_elsewhere.values(), waits.late_unexplained))
        if waits is None or total <= 0:
            return [], [(self._end(_unexplained(rank, group)), 1.0)]
        _add(ends, self._end(_unexplained(rank, group)), waits.late_unexplained / total)
        for family, weight in waits.late_own.items():
            _add(ends, self._end(Culprit(LATE_BY.get(family, family), rank)), weight / total)
        for elsewhere, weight in waits.late_elsewhere.items():
            if weight <= 0:
                continue
            there = self._waits.get((rank, self._group(elsewhere)))
            if there is None:
                _add(ends, self._end(_unexplained(rank, group)), weight / total)
                continue
            bubble_last = not self._inside(elsewhere, group)
            for target, share in _share_out(
                rank, there, weight, bubble_last=bubble_last, transfers_only=elsewhere == group
            ):
                if isinstance(target, int):
                    _add(nexts, self._state(target, elsewhere, self._groups[elsewhere]), share * weight / total)
                else:
                    _add(ends, self._end(target), share * weight / total)
        return list(nexts.items()), list(ends.items())


def _unexplained(rank: int, group: Group) -> Culprit:
    return Culprit("pipeline" if group.p2p else "straggler", rank)


def _share_out(
    rank: int, waits: GroupWaits, excess: float, *, bubble_last: bool = False, transfers_only: bool = False
) -> list[tuple[int | Culprit, float]]:
    """What ``excess`` seconds of a rank's waits in a group were, as shares of late ranks and of ends."""
    behind: list[tuple[int | Culprit, float]] = [
        *waits.behind.items(),
        (Culprit("communication", None, waits.group), waits.unsplit),
    ]
    bubble: list[tuple[int | Culprit, float]] = [(Culprit("pipeline"), waits.bubble)]
    transfers: list[tuple[int | Culprit, float]] = [*_transfers(rank, waits)]
    kinds = [behind, transfers, bubble] if bubble_last else [behind, bubble, transfers]
    rest = excess
    shares: list[tuple[int | Culprit, float]] = []
    for items in [transfers] if transfers_only else kinds:
        size = sum(spent for _, spent in items)
        taken = min(size, rest)
        rest -= taken
        shares += [(target, taken * spent / size) for target, spent in items if taken > 0 and spent > 0]
    whole = sum(spent for _, spent in shares)
    if whole <= 0:
        return [(_unexplained(rank, waits.group), 1.0)]
    return [(target, spent / whole) for target, spent in shares]
