"""The attempts of a run and its goodput, from what Prometheus has recorded. Pure functions.

Prometheus keeps no steps, and sees a run only at each scrape. The counters of seconds by cause are exact. The start and
the end of an attempt come from one of its ranks, the *witness*: an agent exports how long the current phase has been
open. So a scrape during the startup gives the start, and the last scrape gives the last change of phase. Times are in
unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..ledger.causes import OUTSIDE_CAUSES, PHASE_CAUSE
from ..ledger.directory import Run
from ..verdict.hang import HANG_SECONDS
from ..verdict.recent import SAVING
from ..verdict.standing import STALL_FACTOR
from .goodput import PARTS, Attempt, Goodput, add_new, relate

STARTING: tuple[str, ...] = ("startup", "checkpoint_read")
"""The causes of time before the first step, as far as the counters show it: a restore comes before the first step."""
Points = Sequence[tuple[float, float]]
"""Pairs of (evaluation time of a query, its value), in order."""
COVERED, SLACK_SECONDS = 0.98, 120.0
"""A gap in the record of an attempt is reported if less than this share was recorded, and if the gap is longer than
these seconds, which data may still need to arrive."""


class ProcessKey(NamedTuple):
    """One process of a rank. Successive processes with the same rank and attempt have different pids."""

    node: str
    """The node on which it ran. The node's name is used because the address of an agent may change."""
    rank: int
    attempt: int
    pid: str


@dataclass
class Process:
    """The witness of an attempt, as its agent exported it."""

    who: ProcessKey
    asked: float
    """The time of the first query that returned it."""
    first: float
    """The first scrape that saw it."""
    last: float
    """The last scrape that saw it, which may have come after its end."""
    opened: float | None = None
    """When its startup phase was opened, which is when whyidle was attached. None if no scrape saw it before its first
    step."""
    booked: float = 0.0
    """Seconds of startup that its ledger had at `asked`: everything before whyidle was attached."""
    switched: float = 0.0
    """When the phase began in which the last scrape saw it."""
    counted: list[tuple[float, float]] = field(default_factory=list)
    """Pairs of (time, steps that the agent has counted for the rank, earlier attempts included)."""


def processes(sightings: Mapping[ProcessKey, Points]) -> list[Process]:
    """The processes, in the order in which they were seen first.

    ``sightings``: for each process, the times of the queries and the times of the newest scrape that had the process.
    """
    found = []
    for who, points in sightings.items():
        if not points:
            continue
        # If a series ends without a staleness marker, queries still return its last scrape for some time.
        scrapes = list(dict.fromkeys(scrape for _, scrape in points))
        found.append(Process(who, points[0][0], scrapes[0], scrapes[-1]))
    return sorted(found, key=lambda one: one.first)


def add_phases(found: Sequence[Process], since: Mapping[tuple[str, int, str], Points]) -> None:
    """Sets `opened` and `switched`. ``since``: (node, rank, phase) -> query times, and since when the phase was
    open."""
    for place, one in enumerate(found):
        before = max((other.switched for other in found[:place]), default=0.0)
        until = _replaced(found, place)
        for (node, rank, phase), points in since.items():
            if (node, rank) != (one.who.node, one.who.rank):
                continue
            mine = [began for asked, began in points if one.asked <= asked < until and before < began <= one.last]
            one.switched = max(one.switched, *mine, one.first) if mine else max(one.switched, one.first)
            if phase == "startup" and mine:
                one.opened = mine[0]


def add_startups(found: Sequence[Process], booked: Mapping[tuple[str, int], Points]) -> None:
    """Sets `booked`. ``booked``: (node, rank) -> query times, and the seconds of all startups of the rank there so
    far."""
    for one in found:
        points = booked.get((one.who.node, one.who.rank), ())
        before = [value for asked, value in points if asked < one.asked]
        now = next((value for asked, value in points if asked >= one.asked), 0.0)
        earlier = before[-1] if before else 0.0
        one.booked = now - earlier if now >= earlier else now


def add_steps(found: Sequence[Process], counted: Mapping[tuple[str, int], Points]) -> None:
    """Sets `counted`. ``counted``: (node, rank) -> query times, and the steps so far."""
    for place, one in enumerate(found):
        until = _replaced(found, place)
        points = counted.get((one.who.node, one.who.rank), ())
        one.counted = [(asked, steps) for asked, steps in points if one.asked <= asked < until]


def _replaced(found: Sequence[Process], place: int) -> float:
    """When a later process of the same rank was first seen on the same node; infinite if none was."""
    who = found[place].who
    later = (one.asked for one in found[place + 1 :] if one.who[:2] == who[:2])
    return min(later, default=float("inf"))


def grown(at_start: Mapping[str, float], at_end: Mapping[str, float], at_next: Mapping[str, float]) -> float:
    """The largest growth of a counter within an attempt, over all ranks.

    The arguments are the values of the counter by rank and node: when the attempt was first seen, when it was last
    seen, and when the next attempt was first seen. ``at_next`` contains what was counted after the last scrape, if the
    rank stayed on its node.
    """
    most = 0.0
    for key, value in at_end.items():
        end = max(value, at_next.get(key, 0.0))
        before = at_start.get(key, 0.0)
        most = max(most, end - before if end >= before else end)
    return most


@dataclass
class Recorded:
    """An attempt: its witness, and what was recorded for all its ranks."""

    witness: Process
    ranks: int
    world_size: int
    seconds: dict[str, float]
    """Rank-seconds by cause. For a live attempt they include the open phases."""
    steps: int
    saves: int
    alive: bool
    killed: bool | None = None
    """Whether a rank was killed; None if no agent has exported it."""
    failed: bool = False
    """Whether a rank is known to have ended with an error."""
    stopped: bool = False
    """Whether a rank is known to have got SIGTERM."""
    requeues: int = 0
    beginning: str = ""
    """One of BEGINNINGS, as far as it is known."""
    restored_step: int | None = None
    restored_from: int = -1
    """The attempt that has saved that checkpoint; -1 if it is not known."""
    blocked: float = 0.0
    """Seconds in saves, on the rank that they blocked longest."""
    blocked_cpu: float = 0.0
    start: float = 0.0
    end: float = 0.0
    stalled: float = 0.0
    """Rank-seconds."""
    unused: float = 0.0
    """The share of the ranks that train on the CPU beside GPUs that the run was given."""

    @property
    def startup(self) -> float:
        """Seconds until the first step, on average over the ranks."""
        return self.starting / self.ranks

    @property
    def starting(self) -> float:
        """Rank-seconds until the first step."""
        return sum(self.seconds.get(cause, 0.0) for cause in STARTING)

    @property
    def saving(self) -> float:
        return sum(self.seconds.get(cause, 0.0) for cause in SAVING)

    @property
    def outside(self) -> float:
        """Rank-seconds outside the loop, as far as the counters show it: no counter knows that a step was the last."""
        return sum(self.seconds.get(cause, 0.0) for cause in OUTSIDE_CAUSES)

    @property
    def whole(self) -> float:
        return sum(self.seconds.values())

    @property
    def repeated(self) -> float:
        """The share of compute that was spent on steps that an earlier attempt had finished."""
        again, new = (self.seconds.get(cause, 0.0) for cause in ("recompute", "compute"))
        return again / (again + new) if again > 0 else 0.0


def open_causes(phases: Mapping[str, float]) -> dict[str, float]:
    """Rank-seconds in the open phases, by the cause that each phase counts as."""
    found: dict[str, float] = {}
    for phase, seconds in phases.items():
        cause = PHASE_CAUSE.get(phase, "unattributed")
        found[cause] = found.get(cause, 0.0) + seconds
    return found


def without(seconds: Mapping[str, float], twice: Mapping[str, float]) -> dict[str, float]:
    """Seconds by cause, minus the seconds in ``twice``, which were recorded a second time."""
    return {cause: max(0.0, spent - twice.get(cause, 0.0)) for cause, spent in seconds.items()}


def set_bounds(attempts: Sequence[Recorded], begin: float, now: float, apart: float) -> None:
    """Sets the start and the end of each attempt. No attempt starts before ``begin``.

    The last change of phase may have come after the last scrape of the witness, by at most ``apart`` seconds. The
    seconds that its ranks have recorded show when.
    """
    before = begin
    for one in attempts:
        seen = one.witness
        attached = min(seen.booked, one.startup)
        one.start = max(before, seen.first - one.startup if seen.opened is None else seen.opened - attached)
        booked = one.start + one.whole / one.ranks
        one.end = max(one.start, now if one.alive else seen.switched, min(booked, now, seen.switched + apart))
        before = one.end


def standstills(one: Recorded) -> list[tuple[float, float]]:
    """The times between two scrapes in which an attempt made no step for longer than a step may take.

    The start and the end of the attempt must have been set.
    """
    begin = one.start + one.startup
    points = [(at, steps) for at, steps in one.witness.counted if begin <= at <= one.end]
    spans: list[tuple[float, float]] = []
    for (at, steps), (then, later) in pairwise(points):
        if later != steps:
            continue
        if spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], then)
        else:
            spans.append((at, then))
    found: list[tuple[float, float]] = []
    for first, last in sorted(spans, key=lambda span: span[0] - span[1]):
        if last - first > max(HANG_SECONDS, STALL_FACTOR * _usual_step(one, found)):
            found.append((first, last))
    return sorted(found)


def stalled(one: Recorded, spans: Sequence[tuple[float, float]], aside: Sequence[float]) -> float:
    """Rank-seconds beyond a usual step in the standstills ``spans``. ``aside``: those of saves, evaluations and
    rollouts in each."""
    usual = _usual_step(one, spans)
    return sum(
        max(0.0, one.ranks * (last - first - usual) - away) for (first, last), away in zip(spans, aside, strict=True)
    )


def _usual_step(one: Recorded, without: Sequence[tuple[float, float]]) -> float:
    """The mean seconds of a step, without saves and without the standstills, each of which counts as one step."""
    own = (one.whole - one.starting - one.outside - one.saving) / one.ranks
    return max(0.0, own - sum(last - first for first, last in without)) / max(1, one.steps - len(without))


def goodput_of(run: Run, attempts: Sequence[Recorded]) -> Goodput:
    """The goodput of a run, from its attempts in order. Their starts and ends must have been set."""
    found = Goodput(
        *run, max(one.ranks for one in attempts), max(one.world_size for one in attempts), {}, 0.0, whole=False
    )
    parts = found.seconds = dict.fromkeys(PARTS, 0.0)
    before: Recorded | None = None
    found.attempts = [_attempt(one) for one in attempts]
    relate(found.attempts)
    for one, attempt in zip(attempts, found.attempts, strict=True):
        startup = one.starting
        left = one.whole - startup - one.outside - one.saving
        stall = min(one.stalled, left)
        lost = (left - stall) * one.repeated
        branched = min(left - stall - lost, (left - stall) * attempt.branched / max(1, one.steps))
        parts["saving"] += one.saving
        parts["stalled"] += stall
        parts["lost"] += lost
        parts["branched"] += branched
        new = left - stall - lost - branched
        parts["unused"] += new * one.unused
        found.computed += add_new(parts, one.seconds, left - stall, new * (1 - one.unused))
        parts["startup" if before is None else "recovery"] += startup
        if before is not None:
            parts["recovery"] += max(0.0, one.start - before.end) * min(one.ranks, before.ranks)
        for cause in OUTSIDE_CAUSES:
            parts[cause] += one.seconds.get(cause, 0.0)
        found.stepping += (one.whole - startup - one.outside) / one.ranks
        found.blocked += one.blocked
        found.blocked_cpu += min(one.blocked, one.blocked_cpu)
        before = one
    return found


def _attempt(one: Recorded) -> Attempt:
    return Attempt(
        number=one.witness.who.attempt,
        ranks=one.ranks,
        alive=one.alive,
        clean=None if one.killed is None else not (one.killed or one.failed),
        steps=one.steps,
        repeated=round(one.steps * one.repeated),
        saves=one.saves,
        start=one.start,
        end=one.end,
        startup=min(one.startup, one.end - one.start),
        failed=one.failed,
        preempted=one.stopped and not one.alive,
        base=one.restored_step or 0,
        restored_step=one.restored_step,
        restored_from=one.restored_from,
        beginning=one.beginning,
        requeues=one.requeues,
        world_size=one.world_size,
    )


def holes(attempts: Sequence[Recorded]) -> list[str]:
    """Sentences about what was not recorded of the attempts. Their starts and ends must have been set."""
    said = []
    first = attempts[0]
    if first.witness.who.attempt > 0:
        said.append(f"attempts before attempt {first.witness.who.attempt} are outside this time range")
    for one in attempts:
        number = one.witness.who.attempt
        if one.ranks < one.world_size:
            said.append(
                f"{one.world_size - one.ranks} of {one.world_size} ranks of attempt {number} were not seen:"
                " check that the agent of every node is a target of this Prometheus"
            )
        span = (one.end - one.start) * one.ranks
        if one.whole < COVERED * span and span - one.whole > SLACK_SECONDS * one.ranks:
            said.append(
                f"{100 * (1 - one.whole / span):.1f} % of the time of attempt {number} was not recorded:"
                " Prometheus or its rules did not run, or agents did not answer"
            )
        if COVERED * one.whole > span and one.whole - span > SLACK_SECONDS * one.ranks:
            said.append(
                f"{100 * (one.whole / span - 1):.1f} % more time was recorded than attempt {number} lasted:"
                " check whether two Prometheus servers record the same agents"
            )
    if not attempts[-1].alive and attempts[-1].killed is None:
        said.append(
            "Prometheus does not know whether the last attempt ended or was killed: it does not count as a failure here"
        )
    return said
