"""The device-seconds of runs by node: totals, and increases since the last evaluation. No second is lost between them.

`increase()` cannot do this. It sees nothing between the last sample of one window and the first of the next, and it
extrapolates to the whole window: a save of 4 s that ends between two scrapes becomes 0 s or 5 s. So the last value of
each counter is recorded, and the next evaluation subtracts it: the windows have no gap and no overlap.

The agent sums the counters over the ranks of its node. With eight ranks per node, that is an eighth of the series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...agent.metrics.gpu import UNHOOKED_FAMILY
from ...agent.metrics.ranks import NODE_RANK, RANK, RUN
from ...agent.metrics.runs import RUN_PLACE
from ..config import Config
from ..promql import indented, labelled, lines, milliseconds, nested, relabel, seconds
from ..rule import Record
from .names import INSTANCE_NODE, NOTEBOOKS, RUN_INSTANCE, UNKNOWN_RUNS, lateness, spent, total, waited_for

RUN_TOTAL = total("run_node_cause", "device_seconds")
UNHOOKED_TOTAL = total("node_cause", "device_seconds")
LATE_TOTAL = total("rank_family", "late_seconds")
WAITED_FOR_TOTAL = total("run_node_family", "waited_for_seconds")
REMEMBERED = "5m"
"""For how long the last value of a counter is used while scrapes fail. The missed increase is added afterwards."""
LOOKBACK_SECONDS = 300
"""How far back Prometheus looks for the last sample of a series, unless it is told otherwise."""

PLACE = (*RUN_PLACE, "pod")
"""Several pods of a run may be on a node, each with an agent beside its rank. Their sums add up. No other agent has a
pod: one for the whole node may come back in another."""
EVIDENCE = {"evidence": "sampled"}
_OF_RANKS = 'collector="ranks"'


def rules(config: Config) -> tuple[Record, ...]:
    """The rules, in the order in which they depend on each other."""
    return (*_totals(config), _unknown(config), *_increases(config))


def last_value(config: Config, metric: str, matchers: str = "") -> str:
    """The last value of a counter within REMEMBERED, so that a failed scrape leaves no gap."""
    return f"last_over_time({config.series(metric, matchers)}[{REMEMBERED}])"


def missed(config: Config) -> str:
    """How old the last evaluation may be.

    `_unknown` still finds the runs of an evaluation that is LOOKBACK_SECONDS older than the last one should be. If the
    totals of that evaluation were out of reach, all seconds of these runs would be billed again.
    """
    return milliseconds(1000 * LOOKBACK_SECONDS + 1500 * seconds(config.interval))


def heard_before(config: Config, interval: str) -> str:
    """The agents that answered at the evaluation before."""
    return f"{config.series('whyidle_collector_up', _OF_RANKS)} offset {interval} == 1"


def grown(name: str, missed: str, on: str = "", unknown: str = "") -> str:
    """The increase of recorded totals since the last evaluation, or since the one before it if that was missed.

    A counter that fell by more than half has started again from 0. One that fell by less has been corrected by its
    rank, which may learn later what a wait was, while nobody remembered its old value. All of a new counter counts as
    increase, unless its labels ``on`` are those of a series of ``unknown``.
    """
    return lines(*_grown_or_new(name, missed, on, unknown))


def _grown_or_new(name: str, missed: str, on: str = "", unknown: str = "") -> tuple[str, str]:
    return f"clamp_min(idelta({name}[{missed}]) >= -{name}, 0)", f"({name} unless {on} {unknown})" if unknown else name


def of_bills(increases: str) -> str:
    """Increases with the family that their causes have on a bill. It is set after the increase is taken: a counter that
    gets other labels would count as new, with all its seconds."""
    return relabel(increases, "family", "cause", {NOTEBOOKS: NOTEBOOKS})


def matching(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ", ".join(f'{label}="{value}"' for label, value in labels.items()) + "}"


def _totals(config: Config) -> Iterator[Record]:
    yield Record(
        RUN_INSTANCE,
        f"group {config.by('instance', *RUN_PLACE)} ({last_value(config, 'whyidle_run_ranks')})",
        why="The runs of each agent.",
    )
    yield Record(
        RUN_TOTAL,
        f"max {config.by(*PLACE, 'cause', 'family')} ({last_value(config, 'whyidle_run_device_seconds_total')})",
        why="The last value within some minutes, so that a failed scrape leaves no gap. The maximum, so that an agent "
        "that returns under another address does not count twice.",
    )
    yield Record(
        RUN_TOTAL,
        _gaps(config),
        {"cause": "host", "family": "host", **EVIDENCE},
        why="Compute during which the GPU's own counters show an idle GPU, at most all compute. It counts as host, and "
        "is subtracted from compute below.",
    )
    yield Record(
        UNHOOKED_TOTAL,
        f"max {config.by('node', 'cause')} ({last_value(config, 'whyidle_unhooked_seconds_total')})",
        {"family": UNHOOKED_FAMILY},
        why="The same for GPUs that no rank uses.",
    )
    yield Record(LATE_TOTAL, _late(config))
    yield Record(
        WAITED_FOR_TOTAL,
        f"max {config.by(*PLACE, 'family')} ({last_value(config, 'whyidle_run_waited_for_seconds_total')})",
    )


def _gaps(config: Config) -> str:
    part = f"max {config.by(*PLACE)} ({last_value(config, 'whyidle_run_compute_idle_seconds_total')} > 0)"
    return f'{part}\n- clamp_min(\n  {part}\n  - {config.on(*PLACE)} {RUN_TOTAL}{{cause="compute"}}, 0\n)'


def _late(config: Config) -> str:
    """The total lateness by rank, since rules name the rank that is late most."""
    late = f"{last_value(config, 'whyidle_late_seconds_total')} > 0"
    return f"max {config.by(*NODE_RANK, 'family')} ({late})"


def _unknown(config: Config) -> Record:
    return Record(
        UNKNOWN_RUNS,
        f"group {config.by(*RUN_PLACE)} (\n  {RUN_INSTANCE}\n"
        f"  unless {config.on(*RUN_PLACE)} {RUN_INSTANCE} offset {config.interval}\n"
        f"  unless {config.on('instance')} {heard_before(config, config.interval)}\n)",
        why="Runs without series at the last evaluation, on nodes whose agent did not answer then either. It is not "
        "known how much of their counters was counted before. The new counters of any other run start from 0.",
    )


def _unknown_nodes(config: Config) -> str:
    return f"({INSTANCE_NODE} unless {config.on('instance')} {heard_before(config, config.interval)})"


def _increases(config: Config) -> Iterator[Record]:
    sampled = f"-(sum {config.by(*PLACE)} (\n{indented(_grown(config, matching(RUN_TOTAL, EVIDENCE)))}\n))"
    less = labelled(labelled(labelled(sampled, "cause", "compute"), "family", "compute"), "part", "sampled")
    parts = nested(*_grown_or_new(RUN_TOTAL, missed(config), config.on(*RUN_PLACE), UNKNOWN_RUNS), less)
    yield Record(
        spent("run_node_cause"),
        f"sum {config.by(*RUN_PLACE, 'cause', 'family')} (\n{indented(of_bills(parts))}\n) != 0",
        why="Device-seconds since the last evaluation. A counter that fell by more than half has started again from "
        "0. Compute that counts as host is subtracted.",
    )
    yield Record(
        spent("run_node_cause"),
        f"({grown(UNHOOKED_TOTAL, missed(config), config.on('node'), _unknown_nodes(config))}) != 0",
        {"family": UNHOOKED_FAMILY},
        why="The same for GPUs that no rank uses.",
    )
    yield Record(
        spent("run_cause"),
        f"sum {config.by(*RUN, 'cause', 'family')} ({spent('run_node_cause')})",
        why="The same for all nodes of a run, for windows in which nodes are not distinguished.",
    )
    yield Record(
        lateness(),
        f"sum {config.by(*RANK, 'family')} (\n{indented(_grown(config, LATE_TOTAL))}\n) > 0",
    )
    yield Record(
        waited_for("run_node_family"),
        f"sum {config.by(*RUN_PLACE, 'family')} (\n{indented(_grown(config, WAITED_FOR_TOTAL))}\n) != 0",
        why="The ranks find out a few steps later what made the rank late that they waited for.",
    )


def _grown(config: Config, name: str) -> str:
    return grown(name, missed(config), config.on(*RUN_PLACE), UNKNOWN_RUNS)
