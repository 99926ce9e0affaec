"""Advice on pipelines: uneven stages, too few microbatches, the schedule."""

from __future__ import annotations

from statistics import median

from ..whatif.changes import Changes
from .case import Case
from .gains import formula, percent, replayed
from .rule import FLOOR, SIMULATED, Found, Gain, Rule

MOST_MICROBATCHES = 4
"""The largest factor by which the number of microbatches is increased."""
BUBBLE = 0.05
"""The number of microbatches is increased until the bubble takes at most this share of the time."""
CHUNKS = 2
UNEVEN = 1.05


def _stages(case: Case) -> int:
    """The number of stages of the longest pipeline; 0 if there is no pipeline, or if its steps cannot be replayed."""
    if case.basis is None:
        return 0
    pairs = (group for rank in case.ranks for group in rank.groups.values() if group.pairwise)
    # Waits for messages without a schedule are not in `pipeline`.
    return max((group.size for group in pairs if group.pipeline > group.latency), default=0)


def _microbatches(case: Case) -> int:
    """The number of microbatches in a step: the messages that a stage sends to the next one."""
    if case.basis is None:
        return 0
    counts = []
    for one in case.basis.trace.ranks:
        pairwise = {index for index, slot in one.slots.items() if slot.pairwise}
        for step in one.steps:
            sent: dict[int, int] = {}
            for call in step.calls:
                if call.slot in pairwise and call.sent:
                    sent[call.peer] = sent.get(call.peer, 0) + 1
            if sent:
                counts.append(max(sent.values()))
    return round(median(counts)) if counts else 0


def _balance(case: Case) -> Found | None:
    if not _stages(case):
        return None
    gain = replayed(case, Changes(balanced=True))
    work = {
        rank.rank: (rank.seconds["compute"] + rank.seconds["host_blocked"]) / max(1, rank.steps) for rank in case.ranks
    }
    most, mean = max(work.values()), sum(work.values()) / len(work)
    if gain is None or most < UNEVEN * mean:
        return None
    slow = max(work, key=lambda rank: work[rank])
    return Found(
        f"Move layers away from the stage of rank {slow}: about {percent(1 - mean / most)} of its work, to the others",
        gain,
        (f"the stage of rank {slow} works {1000 * most:.0f} ms a step, the mean of all is {1000 * mean:.0f} ms",),
        {"stage_of_rank": slow},
    )


def _bubble(case: Case) -> tuple[float, int, int]:
    """Returns the share of the time that the schedule costs, the stages, and the microbatches."""
    return sum(rank.bubble for rank in case.ranks) / case.window, _stages(case), _microbatches(case)


def _more_microbatches(case: Case) -> Found | None:
    bubble, stages, microbatches = _bubble(case)
    if bubble < FLOOR or stages < 2 or not microbatches:
        return None
    times = next((k for k in (2, 3) if bubble / k <= BUBBLE), MOST_MICROBATCHES)
    return Found(
        f"Split the batch into {times * microbatches} microbatches (now {microbatches})",
        Gain(bubble * (1 - 1 / times), 0.0, bubble, "formula"),
        (
            f"the schedule of {stages} stages with {microbatches} microbatches costs {percent(bubble)} of the time:"
            " stages wait at its start and at its end",
        ),
        {"microbatches": times * microbatches},
    )


def _interleave(case: Case) -> Found | None:
    bubble, stages, microbatches = _bubble(case)
    if bubble < FLOOR or stages < 2 or microbatches % stages:
        return None
    return Found(
        f"Give each rank {CHUNKS} stages of half the layers (ScheduleInterleaved1F1B)",
        formula(bubble * (1 - 1 / CHUNKS), 0.0, bubble),
        (f"the schedule costs {percent(bubble)} of the time; with {CHUNKS} chunks a rank it costs half of that",),
        {"stages_per_rank": CHUNKS},
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "pipeline.balance",
        ("pipeline",),
        "A stage works at least 5 % longer than the mean of all stages",
        "Move layers from the slow stage to the others",
        "Replay with stages that all compute equally long",
        "`pipeline` falls",
        _balance,
    ),
    Rule(
        "pipeline.microbatches",
        ("pipeline",),
        "The bubble of the schedule takes time",
        "Use 2 to 4 times as many microbatches, until the bubble takes at most 5 % of the time",
        "Bubble × (1 − 1/k) for k times as many microbatches. Lower bound: 0, because smaller microbatches may take"
        " longer in total",
        "`whyidle_pipeline_bubble_seconds_total` grows more slowly",
        _more_microbatches,
        SIMULATED,
    ),
    Rule(
        "pipeline.interleave",
        ("pipeline",),
        "The bubble of the schedule takes time, and the number of microbatches is a multiple of the number of stages",
        "Give each rank two stages, interleaved",
        "Half of the bubble (Narayanan et al., arXiv 2104.04473, 2.2). Each batch passes twice as many messages",
        "`whyidle_pipeline_bubble_seconds_total` grows more slowly",
        _interleave,
        SIMULATED,
    ),
)
