"""What a run lost, and to what, by the clocks of its own ranks. Pure: logs in, an expectation out.

What is injected is known exactly: each read, compute section and transfer is stamped by the rank that does it. What
each *other* rank lost to it follows from stamps of all ranks, step by step:

* **Slow reads, slow compute.** A rank r that does not have the fault stands ready at a moment that it stamps (its own
  read or section has ended), and the late rank at a later one. r lost the time in between, at most what was injected in
  this step: what the late rank is late by beyond that is no fault of ours.
* **Slow compute in a pipeline.** A stage that is slower than the others paces the pipeline: m microbatches take
  m * x longer for every stage, x being what is injected in each. So each other rank lost all that was injected.
* **Slow link, calls that are stamped** (FSDP2, HSDP, tensor x data parallel, experts). In a call of a group that has
  the link in it, the transfer begins when the last member enters, so a member lost exit - max(entries) in each call.
* **Slow link, calls inside DDP or a pipeline.** The interface counts what was sent, and the shaped rate is known: the
  wire was busy for bytes / rate. The directions of a ring of two run at the same time (the larger counts), those of a
  pipeline one after the other (they add up).
* A rank **outside** the group of a slow link lost as much as a member.

Nothing can be lost in time in which a rank was on a CPU itself: the least of the time lost so and of wall - CPU counts.

The share is of the time of all ranks from the start of the first step to the end of the job. For slow reads the time of
the late rank itself is lost to storage too; a rank that is slow to compute does compute, and only the others lose time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parallel.links import BURST
from parallel.shapes import SHAPES, Shape
from parallel.spec import COMPUTE, LINK, NOTHING, RANKS, READS, Spec

FAMILY = {READS: "storage", COMPUTE: "straggler", LINK: "network"}

Entry = dict[str, Any]


@dataclass(frozen=True)
class Truth:
    family: str | None
    """None if nothing was injected."""
    share: float
    """Of all ranks' time in the window."""
    culprit: int | None
    """The late rank, if one is."""
    link: tuple[int, int] | None
    injected: float
    """Seconds, in all steps, on the culprit or on the wire."""
    lost: tuple[float, ...]
    """Seconds per rank that count for ``share``."""
    rank_seconds: float
    step_seconds: float
    """The mean of a step, on the ranks that the fault holds up."""


@dataclass(frozen=True)
class Log:
    """What one rank has stamped; seconds are per step where a list is returned."""

    entries: list[Entry]

    def of(self, what: str) -> list[Entry]:
        return [entry for entry in self.entries if entry["what"] == what and entry["step"] >= 0]

    def per_step(self, what: str, value: str) -> list[int]:
        """The sum of a value over the intervals of each step."""
        sums = [0] * len(self.of("step"))
        for entry in self.of(what):
            sums[entry["step"]] += entry[value]
        return sums

    def last_end(self, what: str) -> list[int]:
        """When the last interval of each step ended."""
        ends = [0] * len(self.of("step"))
        for entry in self.of(what):
            ends[entry["step"]] = max(ends[entry["step"]], entry["end"])
        return ends

    def durations(self) -> list[int]:
        return [entry["end"] - entry["start"] for entry in self.of("step")]

    def idle(self) -> list[int]:
        """Of each step, the time in which this rank's training thread was not on a CPU."""
        return [entry["end"] - entry["start"] - entry["cpu"] for entry in self.of("step")]

    @property
    def window(self) -> float:
        """From the start of the first step to the end of the job."""
        (end,) = (entry["at"] for entry in self.entries if entry["what"] == "end")
        return (end - self.of("step")[0]["start"]) / 1e9

    @property
    def sent(self) -> int:
        """Bytes over the slow cable, from the first step to the last."""
        (cable,) = (entry["bytes"] for entry in self.entries if entry["what"] == "cable")
        return cable - self.of("step")[0]["bytes"]


def read_logs(spec: Spec) -> list[Log]:
    return [Log([json.loads(line) for line in spec.log(rank).read_text().splitlines()]) for rank in range(RANKS)]


def truth(spec: Spec, logs: Sequence[Log]) -> Truth:
    shape = SHAPES[spec.shape]
    held = shape.held.get(spec.fault, tuple(range(RANKS)))
    culprit = {READS: shape.reads, COMPUTE: shape.compute}.get(spec.fault)
    injected, lost = 0.0, [0.0] * RANKS
    if culprit is not None:
        what = "read" if spec.fault == READS else "section"
        injected, lost = _late(shape, what, culprit, held, logs)
        if spec.fault == COMPUTE:
            lost[culprit] = 0.0
    elif spec.fault == LINK:
        injected, lost = _link(shape, held, logs)
    rank_seconds = sum(log.window for log in logs)
    steps = [duration for rank in held for duration in logs[rank].durations()[1:]]
    return Truth(
        family=FAMILY.get(spec.fault),
        share=sum(lost) / rank_seconds,
        culprit=culprit,
        link=shape.link if spec.fault == LINK else None,
        injected=injected,
        lost=tuple(lost),
        rank_seconds=rank_seconds,
        step_seconds=sum(steps) / len(steps) / 1e9,
    )


def _late(shape: Shape, what: str, culprit: int, held: Sequence[int], logs: Sequence[Log]) -> tuple[float, list[float]]:
    """(seconds injected on the culprit, seconds lost per rank)"""
    late = logs[culprit]
    injected, ready = late.per_step(what, "injected"), late.last_end(what)
    lost = [0.0] * RANKS
    for rank in held:
        if rank == culprit:
            each = injected
        elif what == "section" and shape.stages > 1:
            each = [min(ns, idle) for ns, idle in zip(injected, logs[rank].idle(), strict=True)]
        else:
            own = logs[rank].last_end(what)
            each = [min(ns, max(0, at - mine)) for ns, at, mine in zip(injected, ready, own, strict=True)]
        lost[rank] = sum(each) / 1e9
    return sum(injected) / 1e9, lost


def _link(shape: Shape, held: Sequence[int], logs: Sequence[Log]) -> tuple[float, list[float]]:
    """(seconds of transfer, seconds lost per rank)"""
    members = stamped_transfers(shape.link, logs) or dict.fromkeys(shape.link, wire_seconds(shape, logs))
    slowest = max(members.values())
    idle = [sum(log.idle()) / 1e9 for log in logs]
    return slowest, [min(members.get(rank, slowest), idle[rank]) if rank in held else 0.0 for rank in range(RANKS)]


def stamped_transfers(link: tuple[int, int], logs: Sequence[Log]) -> dict[int, float]:
    """Seconds per rank in calls of groups that have the link in them; empty if no such calls were stamped."""
    calls: dict[tuple[int, ...], dict[int, list[Entry]]] = {}
    for rank, log in enumerate(logs):
        for entry in log.of("call"):
            calls.setdefault(tuple(entry["group"]), {}).setdefault(rank, []).append(entry)
    lost: dict[int, float] = {}
    for group, members in calls.items():
        if set(link) <= set(group):
            for rank in group:
                lost[rank] = lost.get(rank, 0.0) + _transfers(rank, members) / 1e9
    return lost


def _transfers(rank: int, members: dict[int, list[Entry]]) -> int:
    """ns that a member of a group lost to the transfers of its calls.

    From the last entry on it is the transfer. Before, it is a wait for the last member: lost to the link as well, as
    far as that member left the call before later than this one did.
    """
    total, before = 0, dict.fromkeys(members, 0)
    for number, mine in enumerate(members[rank]):
        last = max(members, key=lambda one: members[one][number]["start"])
        entered = members[last][number]["start"]
        total += max(0, mine["end"] - entered)
        total += max(0, min(entered - mine["start"], before[last] - before[rank]))
        before = {one: members[one][number]["end"] for one in members}
    return total


def wire_seconds(shape: Shape, logs: Sequence[Log]) -> float:
    """How long the slow cable was busy, by its counters and its rate."""
    rate = shape.bits_per_second / 8
    bursts = BURST * len(logs[0].of("step"))
    directions = [max(0, logs[rank].sent - bursts) / rate for rank in shape.link]
    one_after_another = shape.stages > 1 and shape.build.__name__ != "pp_dp"
    return sum(directions) if one_after_another else max(directions)


def increase(faulty: Truth, sound: Truth) -> float:
    """By what share of a step the fault made it longer, against the same shape without it.

    A check on ``share`` that knows nothing of stamps. It is somewhat too low: a rank that waits leaves its CPU to the
    others, so that with four ranks on two CPUs what is not injected gets quicker.
    """
    return (faulty.step_seconds - sound.step_seconds) / faulty.step_seconds


def is_sound(spec: Spec) -> bool:
    return spec.fault == NOTHING
