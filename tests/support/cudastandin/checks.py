"""What must be true of each case. Each check returns sentences about what is wrong."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator

from cudastandin.lab import KINDS_OF_LOG, Outcome, Rank
from cudastandin.truth import cut, length
from whyidle.ledger.causes import CAUSE_ROW
from whyidle.verdict.words import UNSEEN

SUM = 0.001
"""How much the causes may differ from the wall time, as a share of it."""
UNSAMPLED = 0.05
"""Hosts on shared cores are sometimes late with a launch. Idle time inside of compute is only known where something
samples it. Elsewhere, this share of the wall time is not compared."""
SHARE_ERROR = 0.03
"""How much the share of the verdict may differ from that of the log."""
LONG_NS, BESIDE_NS = 1_000_000, 300_000
"""A wait of LONG_NS or more is compared with the log: in the median, at most BESIDE_NS of it may be where the log has
no wait."""
ENOUGH_WAITS = 10
_FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "compute": (("compute",), ("busy", "elsewhere")),
    "storage": (("storage", "cpu"), ("data", "save", "straggler")),
    "straggler": (("straggler",), ("straggler",)),
    "network": (("network",), ("transfer",)),
}
"""Family of the verdict -> families and kinds of the log that have the same time. The host marks how long it waits for
a batch, and the workers compute for a part of that."""
_STAGES = (
    ("storage", "cpu", "straggler", "network", "pipeline", "unattributed"),
    ("data", "save", "straggler", "transfer"),
)
"""The same for pipelines: the log does not tell the bubble from a wait for a slow stage."""
NEWS_OF_NCCL = re.compile(r"^.*\[E\d{4} .*ProcessGroupNCCL.*$", re.MULTILINE)
"""Errors of torch's ProcessGroupNCCL and its watchdog."""


def seconds_agree(outcome: Outcome) -> Iterator[str]:
    together = outcome.case.together
    for rank in outcome.ranks:
        for kinds in [(kind,) for kind in rank.errors if kind not in together] + [together]:
            error = sum(rank.errors[kind] for kind in kinds)
            one_of_both = len({"busy", "idle"} & {*kinds}) == 1
            if abs(error) > outcome.case.error + (unsampled(rank) if one_of_both else 0.0):
                yield f"rank {rank.number}: {' and '.join(kinds)} differs by {error:+.1%} of the wall time"


def unsampled(rank: Rank) -> float:
    """The share of the wall time for which the device was idle between launches, where nothing has sampled that."""
    if rank.reported["gap_seconds"] is not None:
        return 0.0
    return min(UNSAMPLED, rank.truth["idle"] / rank.wall)


def share_agrees(outcome: Outcome) -> Iterator[str]:
    """Compares the share of the verdict, after the look-through, with the log."""
    family, together = outcome.verdict["family"], outcome.case.together
    pair = _STAGES if outcome.case.plan.shape == "pipeline" else _FAMILIES.get(family)
    if pair is None or outcome.case.limit:
        return
    families, kinds = pair
    if family == "compute":
        kinds = (*kinds, *(kind for each in together if "busy" in together for kind in KINDS_OF_LOG[each]))
    whole = sum(rank.reported["wall_seconds"] for rank in outcome.ranks)
    ours = sum(outcome.report["explained"].get(each, 0.0) for each in families) / whole
    known = sum(rank.truth[kind] for rank in outcome.ranks for kind in set(kinds)) / whole
    # A stream that waits for a kernel behind a collective: the log does not tell for which rank or transfer.
    undivided = sum(rank.truth["other_wait"] for rank in outcome.ranks) / whole
    allowed = SHARE_ERROR + max(map(unsampled, outcome.ranks))
    if not known - allowed <= ours <= known + undivided + allowed:
        yield f"the share of {' and '.join(families)} is {ours:.1%}, and {known:.1%} in the log"
    if abs(outcome.verdict["share"] - outcome.report["explained"][family] / whole) > SUM:
        yield f"the share of the verdict is {outcome.verdict['share']:.1%}, and not that of its family"


def idle_time_that_nobody_looked_for_is_told(outcome: Outcome) -> Iterator[str]:
    said = outcome.verdict["summary"]
    turns = outcome.verdict["take_turns"] and CAUSE_ROW["compute"].headline in said
    unseen = any(rank.reported["gap_seconds"] is None for rank in outcome.ranks)
    if unseen and (turns or outcome.verdict["family"] == "compute") and UNSEEN not in said:
        yield f"no word about idle time in compute: {said}"


def waits_are_where_the_device_waited(outcome: Outcome) -> Iterator[str]:
    # A barrier counts as a whole, also while the host spins in it before the device has something to wait for.
    if outcome.case.limit or "STANDIN_SPINS" in outcome.case.env:
        return
    for rank in outcome.ranks:
        long = [each for each in rank.brackets if each[1] - each[0] >= LONG_NS]
        beside = [end - start - length(cut(rank.waits, (start, end))) for start, end in long]
        if len(beside) >= ENOUGH_WAITS and statistics.median(beside) > BESIDE_NS:
            yield f"rank {rank.number}: {statistics.median(beside) / 1e6:.2f} ms of a wait are beside those of the log"


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
    if "idle" in outcome.case.together and UNSEEN in outcome.verdict["summary"]:
        return
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
    share_agrees,
    idle_time_that_nobody_looked_for_is_told,
    waits_are_where_the_device_waited,
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
