"""What transfers and a slow stage cost the stages of a pipeline: replays a run as if no message took any time.

Each stage records when it computed which microbatch, and when it waited for messages. Its *own time* is everything
else: a computation, a read, the optimizer. In the replay, the own times of each stage are as measured, in the same
order. It begins a computation when the stage before it has finished the same microbatch: forwards the previous stage,
backwards the next one. What it waits less than it did wait is what it lost in transfers.

The time on the wire (bytes by rate) would be too much: a part of it passes while the stages compute.

What the others lose because a stage is slow is the difference of two replays: one as measured, and one in which this
stage has the own times of the quickest other one. So a stage that got no CPU after its slow section was late, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from parallel.logs import Log

Key = tuple[int, int, int, bool]
"""Stage, step, microbatch, whether forwards."""


class Computed(NamedTuple):
    """One computation of a stage. Times in ns."""

    before: int
    """The stage's own time since its last computation."""
    ns: int
    key: Key


class Stage(NamedTuple):
    start: int
    """When the first step of the stage began."""
    computed: Sequence[Computed]
    rest: int
    """Own time after the last computation."""
    waited: int
    """How long the stage has waited for messages."""


def stage_of(log: Log, place: int) -> Stage:
    """What a rank has recorded about its stage."""
    at = start = log.steps[0]["start"]
    computed: list[Computed] = []
    own = waited = 0
    for entry in sorted((*log.of("chunk"), *log.of("messages")), key=lambda entry: entry["start"]):
        own += entry["start"] - at
        at = entry["end"]
        if entry["what"] == "messages":
            waited += entry["end"] - entry["start"]
            continue
        key = place, entry["step"], entry["microbatch"], entry["forward"]
        computed.append(Computed(own, entry["end"] - entry["start"], key))
        own = 0
    return Stage(start, computed, own + log.end - at, waited)


def lost_in_transfers(stages: Sequence[Stage]) -> list[int]:
    """For each stage, how much less it would have waited if messages took no time, in ns."""
    return [max(0, stage.waited - waited) for stage, waited in zip(stages, _waits(stages), strict=True)]


def lost_behind(slow: int, stages: Sequence[Stage]) -> list[int]:
    """How much less each other stage would have waited if ``slow`` were as quick as the quickest of them, in ns."""
    others = [stage for place, stage in enumerate(stages) if place != slow]
    quickest = min(others, key=lambda stage: sum(one.before + one.ns for one in stage.computed))
    usual = {one.key[1:]: one for one in quickest.computed}
    quick = [usual[one.key[1:]]._replace(key=one.key) for one in stages[slow].computed]
    without = [*stages[:slow], stages[slow]._replace(computed=quick), *stages[slow + 1 :]]
    pairs = zip(_waits(stages), _waits(without), strict=True)
    return [0 if place == slow else max(0, waited - least) for place, (waited, least) in enumerate(pairs)]


def _waits(stages: Sequence[Stage]) -> list[int]:
    """How long each stage waits if messages take no time, in ns."""
    done: dict[Key, int] = {}
    clock, waits, at = [stage.start for stage in stages], [0] * len(stages), [0] * len(stages)
    moved = True
    while moved:
        moved = False
        for place, stage in enumerate(stages):
            while at[place] < len(stage.computed):
                one = stage.computed[at[place]]
                ready = _ready(one.key, len(stages), done)
                if ready is None:
                    break
                begin = max(clock[place] + one.before, ready)
                waits[place] += begin - clock[place] - one.before
                clock[place] = done[one.key] = begin + one.ns
                at[place] += 1
                moved = True
    assert all(here == len(stage.computed) for here, stage in zip(at, stages, strict=True)), (
        "the stages block each other"
    )
    return waits


def _ready(key: Key, stages: int, done: dict[Key, int]) -> int | None:
    """When the message arrives that a computation needs; 0 if it needs none, None if it is not sent yet."""
    place, step, microbatch, forward = key
    source = place - 1 if forward else place + 1
    return done.get((source, step, microbatch, forward)) if 0 <= source < stages else 0
