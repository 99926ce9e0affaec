"""What one rank measured, and what all parts of the exchange share: words, their MIN, and reasons for lateness."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from whyidle.verdict.lookthrough import Group

from .case import FAMILIES
from .replay import Replay, Wait

RANK_BITS = 20
LATE_STEP = 0.05
"""A step counts as late if the rank's own time made it late by this share of the step."""
Words = dict[tuple, int]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the split. Tests remove single corrections to show their effect."""

    floor: str = "clock"  # transfer time of a message: by "clock", or the "least" single wait of its link
    late_stage: str = "stage"  # how the late rank in a pipeline is found: by "stage", or by peer: "netted", "gross"
    together: bool = True  # the late stage is found including its waits in collectives of the whole pipeline
    bubble: bool = True  # the bound of the schedule is used
    serial: bool = True  # the loading and saving of the late stage counts in full
    latency: bool = True  # the cost of transfers beyond the waits for own messages comes from a replay
    elsewhere: bool = True  # waits in other groups may have made a rank late
    leave_out: bool = True  # but not waits in collectives of groups that contain this one
    excess: bool = True  # over the minimum of the members; otherwise all of the rank's own time
    messages: int = 4  # of each direction of a link in a step that are compared


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
                # Only the values at the end of the last call count: what made a rank late in a group was before it.
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
        """The same rank, with only some of the steps."""
        part = copy(self)
        part.slices = {group: slices[steps] for group, slices in self.slices.items()}
        part.walls, part.steps_own = self.walls[steps], self.steps_own[steps]
        return part


def containing(group: Group, members: list[Member]) -> list[str]:
    """The dimensions in whose collectives all members of a group take part together, and so leave together."""
    inside = set(group.ranks)
    return [
        name
        for name, other in members[0].groups.items()
        if name != group.name
        and not other.p2p
        and inside <= set(other.ranks)
        and all(member.groups.get(name) == other for member in members)
    ]


def least(contributions: Iterable[Words]) -> Words:
    """The MIN all-reduce; a word that some member lacks is absent from its contribution."""
    result: Words = {}
    for words in contributions:
        for key, value in words.items():
            if key not in result or value < result[key]:
                result[key] = value
    return result


def pack_own(words: Words, number: int, slice_: Slice, dimensions: list[str]) -> None:
    for family, ns in enumerate(slice_.own):
        words["own", number, family] = ns
    for name in dimensions:
        words["elsewhere", number, name] = slice_.elsewhere.get(name, 0)


class Reasons:
    """What made a rank late in a group, ns, over all steps."""

    def __init__(self, member: Member, group: Group, dimensions: list[str]):
        self.member = member
        self.group = group
        self.dimensions = dimensions
        self.own: dict[Any, int] = {}
        self.elsewhere: dict[Any, int] = {}
        self.steps = 0
        self.unexplained = 0

    def add(
        self, late: int, number: int, slice_: Slice, words: Words, options: Options, transfers: int | None = None
    ) -> None:
        """A step in which the rank was ``late`` ns late. ``transfers``: by how much its own messages' transfers exceed
        those of the other members.

        Excesses may add up to more than the lateness (each minimum may be of another rank): they are then shares of it.
        """
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
            excess[self.group] = transfers
        excess = {cause: ns for cause, ns in excess.items() if ns > 0}
        total = sum(excess.values())
        explained = min(late, total)
        self.unexplained += late - explained
        for cause, ns in excess.items():
            kind = self.own if isinstance(cause, str) else self.elsewhere
            kind[cause] = kind.get(cause, 0) + explained * ns // total
        by_own = sum(ns for cause, ns in excess.items() if isinstance(cause, str))
        if by_own and explained * by_own // total >= LATE_STEP * self.member.walls[number]:
            self.steps += 1

    def fields(self) -> dict[str, Any]:
        """Of GroupWaits."""
        return {
            "late_own": seconds(self.own),
            "late_elsewhere": seconds(self.elsewhere),
            "late_unexplained": self.unexplained / 1e9,
            "late_steps": self.steps,
        }


def seconds(values: dict) -> dict:
    return {key: ns / 1e9 for key, ns in values.items() if ns > 0}
