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
samples it. Elsewhere, this share of the wall time may count as compute."""
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
_WORK: dict[str, tuple[str, ...]] = {
    "busy": ("compute",),
    "idle": ("host",),
    "waits": ("straggler", "network", "communication"),
}
"""Kind of time that is only compared in a sum with compute -> its families."""
A_RANK_IS_LATE = re.compile(r"\brank \d+\b.* is late: ")
NEWS_OF_NCCL = re.compile(r"^.*\[E\d{4} .*ProcessGroupNCCL.*$", re.MULTILINE)
"""Errors of torch's ProcessGroupNCCL and its watchdog."""


def seconds_agree(outcome: Outcome) -> Iterator[str]:
    case = outcome.case
    for rank in outcome.ranks:
        for kinds in [(kind,) for kind in rank.errors if kind not in case.together] + [case.together]:
            error = sum(rank.errors[kind] for kind in kinds)
            allowed = max(case.error, case.wait_error if {"waits", "idle"} & {*kinds} else 0.0)
            unseen = unsampled(rank)
            more = unseen if "busy" in kinds and "idle" not in kinds else 0.0
            less = unseen if "idle" in kinds and "busy" not in kinds else 0.0
            if not -allowed - less <= error <= allowed + more:
                yield f"rank {rank.number}: {' and '.join(kinds)} differs by {error:+.1%} of the wall time"


def unsampled(rank: Rank) -> float:
    """The share of the wall time for which the device was idle between launches, where nothing has sampled that."""
    if rank.reported["gap_seconds"] is not None:
        return 0.0
    return min(UNSAMPLED, rank.truth["idle"] / rank.wall)


def share_agrees(outcome: Outcome) -> Iterator[str]:
    """Compares the share of the verdict, after the look-through, with the log."""
    family, together = outcome.verdict["family"], outcome.case.together
    whole = sum(rank.reported["wall_seconds"] for rank in outcome.ranks)
    if abs(outcome.verdict["share"] - outcome.report["explained"][family] / whole) > SUM:
        yield f"the share of the verdict is {outcome.verdict['share']:.1%}, and not that of its family"
    pair = _STAGES if outcome.case.plan.shape == "pipeline" else _FAMILIES.get(family)
    works = "busy" in together and family in ("compute", "host")
    if works:
        pair = (
            tuple(each for kind in together for each in _WORK[kind]),
            tuple(each for kind in together for each in KINDS_OF_LOG[kind]),
        )
    if pair is None:
        return
    families, kinds = pair
    ours = sum(outcome.report["explained"].get(each, 0.0) for each in families) / whole

    def share(*kinds: str) -> float:
        return sum(rank.truth[kind] for rank in outcome.ranks for kind in set(kinds)) / whole

    allowed = SHARE_ERROR + (0.0 if works and "idle" in together else max(map(unsampled, outcome.ranks)))
    # A stream that waits for a kernel behind a collective: the log does not tell for which rank or transfer.
    least, most = share(*kinds) - allowed, share(*{*kinds, "other_wait"}) + allowed
    if "idle" in together:  # waits for a rank whose host is late may count as `host` or as `straggler`
        least, most = (least, most + share("straggler")) if works else (least - share("straggler"), most)
    if not least <= ours <= most:
        yield f"the share of {' and '.join(families)} is {ours:.1%}, and {share(*kinds):.1%} in the log"


def idle_time_that_nobody_looked_for_is_told(outcome: Outcome) -> Iterator[str]:
    said = outcome.verdict["summary"]
    turns = outcome.verdict["take_turns"] and CAUSE_ROW["compute"].headline in said
    unseen = [rank.reported["gap_seconds"] is None for rank in outcome.ranks]
    must = any(unseen) if outcome.verdict["family"] == "compute" else turns and all(unseen)
    if must and UNSEEN not in said:
        yield f"no word about idle time in compute: {said}"


def waits_are_where_the_device_waited(outcome: Outcome) -> Iterator[str]:
    # A barrier counts as a whole, also while the host spins in it before the device has something to wait for.
    case = outcome.case
    if case.wait_error or {"busy", "waits"} <= {*case.together} or "STANDIN_SPINS" in case.env:
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
    if "idle" in outcome.case.together and "host" in families and UNSEEN in outcome.verdict["summary"]:
        families = (*families, "compute")
    if families and outcome.verdict["family"] not in families:
        yield f"the verdict is {outcome.verdict['family']}, and not {' or '.join(families)}"


def late_rank_is_named(outcome: Outcome) -> Iterator[str]:
    late, said = outcome.case.late, outcome.verdict["summary"]
    if late is not None and outcome.late != [late]:
        yield f"late ranks: {outcome.late}, and not rank {late}"
    if outcome.case.families in (("compute",), ("network",)) and A_RANK_IS_LATE.search(said):
        yield f"a rank is late, and none should be: {said}"


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
