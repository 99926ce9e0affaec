"""The node that made a run late over the last minutes, as the recorded rules saw it each minute."""

from __future__ import annotations

import argparse
from collections import Counter
from statistics import mean

from ...advisor.handoff import FAMILIES, Blamed, NoHandOff
from ...alerts.config import DEFAULT
from ...alerts.recording.names import RANK_PLACE, RUN_RANKS, culprit, verdict
from ...ledger.directory import Run
from .client import Course, Prometheus
from .runs import Chosen, choose, equal

STEP_SECONDS = 60.0
"""How often the rules are evaluated."""
AGREE = 0.5
"""A verdict that counters can confirm must be confirmed for this part of the minutes in which the node was late."""
GPU_ALERTS = (
    "WhyidleGpu(Lost|Service|Gone|XidReset|EccUncorrected|MemoryResetPending|Throttled|PowerLimitLowered|PcieDegraded)"
)
WITH_COUNTERS = ("storage", "cpu")


def blamed(asked: Prometheus, args: argparse.Namespace) -> tuple[Run, Blamed, list[str]]:
    """The run, the node, and the alerts on its GPUs that fire. Raises NoAnswer and NoHandOff."""
    chosen = choose(asked, args, args.since)
    window = DEFAULT.window
    verdicts = {
        at: (course.labels.get("family", ""), course.labels.get("corroboration", ""))
        for course in _over_time(asked, chosen, verdict(window))
        for at, _ in course.points
    }
    if not verdicts:
        raise NoHandOff("no verdict was recorded in this time")
    nodes, instances = _places(asked, chosen)
    late: list[tuple[float, str, str, str, float]] = []  # time, node, rank, family, GPUs that wait
    moving = False
    for course in _over_time(asked, chosen, culprit(window)):
        rank, family = course.labels.get("rank", ""), course.labels.get("family", "")
        for at, value in course.points if family in FAMILIES else ():
            on = nodes.get((round(at), rank), set())
            if len(on) <= 1:
                late.append((at, "".join(on), rank, family, value))
            else:
                moving = True
    if moving and not late:
        raise NoHandOff(f"the late ranks were on more than one node in the {window} of each verdict")
    if not late:
        said = Counter(family for family, _ in verdicts.values()).most_common(1)[0][0]
        raise NoHandOff(f"the verdict is {said}: it is not about one rank")
    every = set[str]().union(*nodes.values())
    if len(every) < 2:
        raise NoHandOff("all ranks are on one node, so no node is slower than others")
    node = Counter(one[1] for one in late).most_common(1)[0][0]
    if not node:
        raise NoHandOff("it is not known on which node the late ranks are")
    mine = [one for one in late if one[1] == node]
    family = Counter(one[3] for one in mine).most_common(1)[0][0]
    times = {one[0] for one in mine}
    agreed = sum(verdicts.get(at, ("", ""))[1] == "confirmed" for at in times)
    if family in WITH_COUNTERS and agreed < AGREE * len(times):
        raise NoHandOff(f"node {node} is suspected, but counters confirm the verdict {family} in {agreed} of"
                        f" {len(times)} minutes only")  # fmt: skip
    ranks = max((sample.value for sample in asked.query(chosen.of(RUN_RANKS), chosen.end)), default=0.0)
    ranks = max(1.0, ranks or len({rank for _, rank in nodes}))
    share = mean(one[4] for one in mine) * len(times) / len(verdicts) / ranks
    numbers = tuple(sorted({int(one[2]) for one in mine if one[2].isdecimal()}))
    found = Blamed(node, numbers, min(1.0, share), family, len(verdicts), len(times), "minutes")
    return chosen.run, found, _alerts(asked, chosen, instances.get(node, set()))


def _over_time(asked: Prometheus, chosen: Chosen, series: str, window: str = "") -> list[Course]:
    """``window``: at each moment, what there was in this time until then."""
    selector = f"last_over_time({chosen.of(series)}[{window}])" if window else chosen.of(series)
    return asked.range(selector, chosen.start, chosen.end, STEP_SECONDS)


def _places(asked: Prometheus, chosen: Chosen) -> tuple[dict[tuple[int, str], set[str]], dict[str, set[str]]]:
    """((unix time, rank) -> its nodes in the window of a verdict until then, node -> the instances of its agent)."""
    nodes: dict[tuple[int, str], set[str]] = {}
    instances: dict[str, set[str]] = {}
    for course in _over_time(asked, chosen, RANK_PLACE, DEFAULT.window):
        node, rank = (course.labels.get(label, "") for label in ("node", "rank"))
        instances.setdefault(node, set()).add(course.labels.get("instance", ""))
        for at, _ in course.points:
            nodes.setdefault((round(at), rank), set()).add(node)
    return nodes, instances


def _alerts(asked: Prometheus, chosen: Chosen, instances: set[str]) -> list[str]:
    phrases = set()
    for instance in instances:
        which = f'ALERTS{{alertname=~"{GPU_ALERTS}", alertstate="firing", {equal("instance", instance)}}}'
        for labels, _ in asked.query(which, chosen.end):
            phrases.add(f"{labels.get('alertname', '')} fires for GPU {labels.get('gpu', '?')}")
    return sorted(phrases)
