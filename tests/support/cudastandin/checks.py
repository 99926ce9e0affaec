"""What must be true of each case. Each check returns sentences about what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from cudastandin.lab import Outcome, Rank

SUM = 0.001
"""How much the causes may differ from the wall time, as a share of it."""
UNSAMPLED = 0.05
"""Hosts on shared cores are sometimes late with a launch. Idle time inside of compute is only known where something
samples it. Elsewhere, this share of the wall time is not compared."""
NEWS_OF_NCCL = re.compile(r"^.*\[E\d{4} .*ProcessGroupNCCL.*$", re.MULTILINE)
"""Errors of torch's ProcessGroupNCCL and its watchdog."""


def seconds_agree(outcome: Outcome) -> Iterator[str]:
    together = outcome.case.together
    for rank in outcome.ranks:
        errors = {kind: error for kind, error in rank.errors.items() if kind not in together}
        errors[" and ".join(together)] = sum(rank.errors[kind] for kind in together)
        for kind, error in errors.items():
            allowed = outcome.case.error + (unsampled(rank) if kind in ("busy", "idle") else 0.0)
            if abs(error) > allowed:
                yield f"rank {rank.number}: {kind} differs by {error:+.1%} of the wall time"


def unsampled(rank: Rank) -> float:
    """The share of the wall time for which the device was idle between launches, where nothing has sampled that."""
    if rank.reported["gap_seconds"] is not None:
        return 0.0
    return min(UNSAMPLED, rank.truth["idle"] / rank.wall)


def causes_sum_to_the_wall(outcome: Outcome) -> Iterator[str]:
    for rank in outcome.ranks:
        rest = sum(rank.seconds.values()) / rank.wall - 1
        if abs(rest) > SUM:
            yield f"rank {rank.number}: the causes differ from the wall time by {rest:+.2%}"


def every_step_is_counted(outcome: Outcome) -> Iterator[str]:
    least = outcome.case.plan.steps
    for rank in outcome.ranks:
        if not least <= rank.reported["steps"] <= least + outcome.case.more_steps:
            yield f"rank {rank.number}: {rank.reported['steps']} steps, and not {least}"


def family_is_right(outcome: Outcome) -> Iterator[str]:
    families = outcome.case.families
    if families and outcome.verdict["family"] not in families:
        yield f"the verdict is {outcome.verdict['family']}, and not {' or '.join(families)}"


def late_rank_is_named(outcome: Outcome) -> Iterator[str]:
    late = outcome.case.late
    if late is not None and outcome.late != [late]:
        yield f"late ranks: {outcome.late}, and not rank {late}"


def hooks_have_no_fault(outcome: Outcome) -> Iterator[str]:
    for rank in outcome.ranks:
        for count in ("faults", "unmeasured"):
            if rank.reported[count]:
                yield f"rank {rank.number}: {count}: {rank.reported[count]}"


def captures_have_no_event_of_ours(outcome: Outcome) -> Iterator[str]:
    for rank in outcome.ranks:
        if rank.captured:
            yield f"rank {rank.number}: {rank.captured} events were recorded into a capture"


def nccl_reports_no_error(outcome: Outcome) -> Iterator[str]:
    yield from (f"NCCL: {line}" for line in NEWS_OF_NCCL.findall(outcome.stderr))


CHECKS: tuple[Callable[[Outcome], Iterator[str]], ...] = (
    seconds_agree,
    causes_sum_to_the_wall,
    every_step_is_counted,
    family_is_right,
    late_rank_is_named,
    hooks_have_no_fault,
    captures_have_no_event_of_ours,
    nccl_reports_no_error,
)


def wrong(outcome: Outcome) -> list[str]:
    return [sentence for check in CHECKS for sentence in check(outcome)]
