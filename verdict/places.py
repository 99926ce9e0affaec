"""What late ranks have in common: a stage of a pipeline, a node, or a group. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .accounts import RunAccount
from .chain import groups_of
from .ends import listed, named

CONCENTRATION = 0.60
"""Ranks or places are named if they have at most half of all ranks, and at least this share of the seconds. Only those
that have at least half as many seconds as the one with the most are considered."""
EVEN = 0.5
"""All ranks of a place are named if each has at least this part of their mean."""
NAMED = 4
"""At most this many ranks are named one by one if they are most ranks of a place."""


class Place(NamedTuple):
    """Ranks that have something in common."""

    kind: str
    """`rank`, `stage`, `node`, or the label of groups."""
    name: str
    ranks: tuple[int, ...]


class Named(NamedTuple):
    """The places that have most of the seconds."""

    ranks: tuple[int, ...]
    """Their ranks, in ascending order. Empty: no few places have most of the seconds."""
    text: str = ""
    """For example `rank 3` or `all ranks of stage 7`."""


NOBODY = Named(())


def most_of(spent: Mapping[int, float], account: RunAccount) -> Named:
    """The few ranks or places that have most of the seconds. ``spent``: rank -> seconds."""
    ranks = _few([Place("rank", str(rank.rank), (rank.rank,)) for rank in account.ranks], spent, len(account.ranks))
    kinds: dict[str, list[Place]] = {}
    for place in _places(account):
        kinds.setdefault(place.kind, []).append(place)
    found = [_few(places, spent, len(account.ranks)) for places in kinds.values()]
    places = min((few for few in found if few), key=lambda few: len(_ranks_of(few)), default=[])
    single, common = _ranks_of(ranks), _ranks_of(places)
    apart = len(single) <= NAMED or 2 * len(single) <= len(common)
    if single and (not common or (apart and single != common) or len(single) == 1):
        return Named(single, named([*single]))
    return Named(common, _text(places, spent)) if common else NOBODY


def _few(places: Iterable[Place], spent: Mapping[int, float], ranks: int) -> list[Place]:
    """The places that have most of the seconds; empty if these are too many, or have too few seconds."""
    seconds = {place: sum(spent.get(rank, 0.0) for rank in place.ranks) for place in places}
    most = max(seconds.values(), default=0.0)
    found = [place for place, mine in seconds.items() if mine > 0 and mine >= most / 2]
    covered = sum(spent.get(rank, 0.0) for rank in _ranks_of(found))
    return found if 2 * len(_ranks_of(found)) <= ranks and covered >= CONCENTRATION * sum(spent.values()) else []


def _ranks_of(places: Iterable[Place]) -> tuple[int, ...]:
    return tuple(sorted({rank for place in places for rank in place.ranks}))


def _places(account: RunAccount) -> list[Place]:
    """The stages, nodes and groups that have several ranks, but not all. The first ones are preferred."""
    stages: dict[int, list[int]] = {}
    nodes: dict[str, list[int]] = {}
    groups: list[Place] = []
    sizes = {key: group.size for rank in account.ranks for key, group in rank.groups.items()}
    for key, group in groups_of(account).items():
        if group.p2p and len(group.ranks) == sizes[key]:
            for stage, rank in enumerate(sorted(group.ranks)):
                stages.setdefault(stage, []).append(rank)
        groups.append(Place(group.name, group.name, tuple(sorted(group.ranks))))
    for rank in account.ranks:
        nodes.setdefault(rank.newest.node, []).append(rank.rank)
    found = [
        *(Place("stage", str(stage), tuple(sorted({*ranks}))) for stage, ranks in sorted(stages.items())),
        *(Place("node", node, tuple(ranks)) for node, ranks in nodes.items() if node),
        *groups,
    ]
    return [place for place in found if 1 < len(place.ranks) < len(account.ranks)]


def _text(places: list[Place], spent: Mapping[int, float]) -> str:
    """For example `all ranks of stage 7`, `ranks on node-3 and node-4`."""
    ranks = _ranks_of(places)
    mean = sum(spent.get(rank, 0.0) for rank in ranks) / len(ranks)
    who = "all ranks" if all(spent.get(rank, 0.0) >= EVEN * mean for rank in ranks) else "ranks"
    kind, several = places[0].kind, len(places) > 1
    names = listed([place.name for place in places])
    if kind == "stage":
        return f"{who} of stage{'s' if several else ''} {names}"
    if kind == "node":
        return f"{who} on {names}"
    name = "" if kind[0].isdigit() else f" {kind}"  # a group without a name is called `4 ranks`
    if several:
        return f"{who} of {len(places)} groups{name} ({named([*ranks])})"
    return f"{who} of the group{name} ({named([*ranks])})"
