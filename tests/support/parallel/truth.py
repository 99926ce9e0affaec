"""What a run lost, and to what, according to the clocks of its ranks. Pure functions: logs in, an expectation out.

Injected faults are known exactly, because the rank records them: a slow read, a slow compute section. Transfers over a
slow link are recorded by the ranks that wait for them. The losses of other ranks follow from when each entered which
call (replay.py). What a slow link between the stages of a pipeline costs follows from when each stage computed which
microbatch (stages.py).

The share is of the time of all ranks from the start of the first step to the end of the job. For slow reads, the time
of the late rank itself is lost to storage too. A rank with slow compute does compute, so only the others lose time.

Otherwise a step of a pipeline is two events, forwards and backwards: a stage that is slower than the others by x in
each of m microbatches determines the speed, and all stages take m * x longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parallel.cases import SHAPES, Shape
from parallel.logs import Entry, Log
from parallel.replay import Event, Injected, Met, Piped, replay
from parallel.spec import COMPUTE, LINK, RANKS, READS, Spec
from parallel.stages import Stage, lost_behind, lost_in_transfers, stage_of

FAMILY = {READS: "storage", COMPUTE: "straggler", LINK: "network"}


@dataclass(frozen=True)
class Truth:
    family: str | None
    """None if nothing was injected."""
    culprit: int | None
    """The late rank, if there is one."""
    link: tuple[int, int] | None
    injected: float
    """Seconds, in all steps, on the culprit or in transfers."""
    lost: tuple[float, ...]
    """Seconds per rank."""
    rank_seconds: float

    @property
    def share(self) -> float:
        """Of all ranks' time in the window."""
        return sum(self.lost) / self.rank_seconds


def truth(spec: Spec, logs: Sequence[Log]) -> Truth:
    shape = SHAPES[spec.shape]
    slow = shape.link if spec.fault == LINK else None
    events = [*_injections(spec, logs), *_meetings(slow, logs), *_pipelines(shape, logs)]
    lost = replay(events)
    for pipeline in shape.pipelines:
        if slow is not None and set(slow) <= set(pipeline):
            for rank, ns in zip(pipeline, lost_in_transfers(_stages(pipeline, logs)), strict=True):
                lost[rank] += ns / 1e9
        if spec.fault == COMPUTE and len(pipeline) == RANKS:
            lost = [ns / 1e9 for ns in lost_behind(shape.compute, _stages(pipeline, logs))]
    injected = sum(event.ns for event in events if isinstance(event, Injected)) / 1e9
    return Truth(
        family=FAMILY.get(spec.fault),
        culprit={READS: shape.reads, COMPUTE: shape.compute}.get(spec.fault),
        link=slow,
        injected=max(lost) if slow else injected,
        lost=tuple(lost) if spec.fault in FAMILY else (0.0,) * RANKS,
        rank_seconds=sum(log.window_seconds for log in logs),
    )


def _stages(pipeline: Sequence[int], logs: Sequence[Log]) -> list[Stage]:
    return [stage_of(logs[rank], place) for place, rank in enumerate(pipeline)]


def _injections(spec: Spec, logs: Sequence[Log]) -> Iterator[Event]:
    for rank, log in enumerate(logs):
        for what in ("read", "section"):
            for entry in log.of(what):
                if entry["injected"]:
                    yield Injected(entry["end"], rank, entry["injected"], lost=what == "read")


def _meetings(slow: tuple[int, int] | None, logs: Sequence[Log]) -> Iterator[Event]:
    """The calls of each group in their order, which is the same on all its members."""
    calls: dict[tuple[int, ...], dict[int, list[Entry]]] = {}
    for rank, log in enumerate(logs):
        for entry in log.of("call"):
            calls.setdefault(tuple(entry["group"]), {}).setdefault(rank, []).append(entry)
    for group, members in calls.items():
        for entries in zip(*(members[rank] for rank in group), strict=True):
            yield Met(
                {rank: entry["start"] for rank, entry in zip(group, entries, strict=True)},
                {rank: entry["end"] for rank, entry in zip(group, entries, strict=True)},
                slow=slow is not None and set(slow) <= set(group),
            )


def _pipelines(shape: Shape, logs: Sequence[Log]) -> Iterator[Event]:
    idle = [log.idle() for log in logs]
    for pipeline in shape.pipelines:
        for step in range(len(idle[0])):
            of_step = {rank: [entry for entry in logs[rank].entries if entry["step"] == step] for rank in pipeline}
            at = max(entry["end"] for rank in pipeline for entry in of_step[rank] if entry["what"] == "section")
            waits = {rank: idle[rank][step] for rank in pipeline}
            yield Piped(at, waits)
            # Gradients arrive before the first stage enters DDP's all-reduce, which a last stage has done by then.
            ends = [call["start"] - 1 for call in of_step[pipeline[0]] if call["what"] == "call"]
            ends += [entry["end"] for entry in of_step[pipeline[0]] if entry["what"] == "schedule"]
            yield Piped(ends[0], dict(reversed(waits.items())))
