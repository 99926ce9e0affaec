"""Where a report and the truth of a run disagree. Only this file knows the structure of a report."""

from __future__ import annotations

from typing import Any

from parallel.truth import Truth
from whyidle.verdict.shortage import SHORTAGES

TOLERANCE = 0.05
"""A part of the wall time. The worst of 40 runs, with four ranks on two shared cores, was off by 0.039."""
ELSEWHERE = 0.12
"""A part of the wall time: with a slow link, no rank that is not at its ends may be late by more. Four ranks share two
cores, perhaps with other programs."""
SUM_TOLERANCE = 0.001
NOTHING_SHARE = 0.15
"""If nothing was injected, a larger share of storage, stragglers or network is a false alarm."""
KNOWN_ALARMS = {
    "fsdp2-nothing": 0.4,
    "hsdp-nothing": 0.4,
    "tp-dp-nothing": 0.4,
    "gpipe-nothing": 0.25,
    "1f1b-nothing": 0.25,
}
"""Shapes that communicate all the time. If four ranks share two busy cores, gathers over the loopback interface have
taken up to 27 % of the time, because of gloo's own threads, and count as `network`. By their own clocks, stages of a
pipeline lost 29 % in messages although nothing was slow; this includes 7 to 12 % in which threads got no CPU."""
FALSE_ALARMS = ("storage", "straggler", "network")


def disagreements(report: dict[str, Any], truth: Truth, case: str = "") -> list[str]:
    """Sentences. There are none if the report is right."""
    most = KNOWN_ALARMS.get(case, NOTHING_SHARE)
    return [*_sums(report), *(_nothing(report, most) if truth.family is None else _fault(report, truth))]


def _sums(report: dict[str, Any]) -> list[str]:
    """Every second of every rank is in exactly one cause."""
    found = list(report["problems"])
    for rank in report["per_rank"]:
        wall, total = rank["wall_seconds"], sum(rank["seconds"].values())
        if abs(total - wall) > SUM_TOLERANCE * wall:
            found.append(f"rank {rank['rank']}: the causes sum to {total:.4f} s of {wall:.4f} s")
    return found


def _nothing(report: dict[str, Any], most: float) -> list[str]:
    """Four ranks on two cores: computing, waiting for a CPU, and unsplit waits may be the verdict, and that ranks take
    turns at being late because their threads wait for a CPU."""
    verdict = report["verdict"]
    family, share = verdict["family"], verdict["share"]
    short_of_cpu = verdict["take_turns"] and verdict["summary"].endswith(SHORTAGES["queued"])
    if family in FALSE_ALARMS and share > most and not short_of_cpu:
        return [f"nothing was injected, and the verdict is {family} {share:.1%}"]
    return []


def queued(report: dict[str, Any], ends: tuple[int, int] | None) -> float:
    """The share of the wall time in which transfers continued while the ranks' own threads got no CPU, and in which
    others waited for the ends of the slow link because of that. By the clocks of the ranks these are transfers; the
    report says `cpu`. 0 without a slow link."""
    if ends is None:
        return 0.0
    late = [one["share"] for one in report["verdict"]["late_ranks"] if one["rank"] in ends and one["family"] == "cpu"]
    return report["seconds"]["collective_queue"] / report["rank_seconds"] + sum(late)


def named(report: dict[str, Any], truth: Truth) -> bool:
    """Whether the rank that is late by the clocks is the first one that the verdict names, for the same family."""
    late = [(entry["rank"], entry["family"]) for entry in report["verdict"]["late_ranks"]]
    return late[:1] == [(truth.culprit, truth.family)]


def _fault(report: dict[str, Any], truth: Truth) -> list[str]:
    verdict, found = report["verdict"], []
    if verdict["family"] != truth.family:
        return [f"the verdict is {verdict['family']} {verdict['share']:.1%}, not {truth.family} {truth.share:.1%}"]
    least = truth.share - queued(report, truth.link)
    if not least - TOLERANCE <= verdict["share"] <= truth.share + TOLERANCE:
        found.append(f"{verdict['family']} has {verdict['share']:.1%} of the wall, not {truth.share:.1%}")
    if truth.culprit is not None and not named(report, truth):
        late = [(entry["rank"], entry["family"]) for entry in verdict["late_ranks"]]
        found.append(f"late by the report: {late}; by the clocks: rank {truth.culprit}, by {truth.family}")
    if truth.link is not None:
        elsewhere = [entry for entry in verdict["late_ranks"] if entry["rank"] not in truth.link]
        if any(entry["share"] > ELSEWHERE for entry in elsewhere):
            found.append(f"the slow link is between {truth.link}, and these are said to be late: {elsewhere}")
    return found
