"""Where device-seconds go within a window: per run and cluster, and per node in one window, by family and by cause."""

from __future__ import annotations

from collections.abc import Iterator

from ...agent.metrics.gpu import UNHOOKED_FAMILY
from ...agent.metrics.ranks import RUN
from ...ledger.causes import FAMILIES
from ..config import Config
from ..promql import indented, labelled, lines, milliseconds, seconds
from ..rule import Record
from .names import OPEN, RUN_NODE_RANKS, RUN_RANKS, device_seconds, goodput, share, spent

# Not run!="": for that matcher, Prometheus reads every series that has a run.
_OF_RUNS, _UNHOOKED = f'{{family!="{UNHOOKED_FAMILY}"}}', f'{{family="{UNHOOKED_FAMILY}"}}'
ASKED_OF_NODES = ("compute", "network")
"""Families that panels and signals query by name for each node. With many nodes, zeros for all families would be too
many series."""


def rules(config: Config, window: str) -> tuple[Record, ...]:
    """The rules for a window, in the order in which they depend on each other."""
    return (
        *_seconds(config, window),
        *_shares(config, window, nodes=window == config.window),
        *_goodput(window),
        *_rates(config, window),
    )


def within(config: Config, increases: str, window: str) -> str:
    """The sum of recorded increases over the evaluations in a window.

    The range is shorter than the window by half an evaluation interval: Prometheus 2 includes both ends of a range,
    Prometheus 3 only one.
    """
    return f"sum_over_time({increases}[{milliseconds(1000 * seconds(window) - 500 * seconds(config.interval))}])"


def _seconds(config: Config, window: str) -> Iterator[Record]:
    """Nodes are distinguished in one window only, that of evidence: the others would cost as much for each node."""
    runs, nodes = spent("run_cause", window), spent("run_node_cause", window)
    if window == config.window:
        yield _counted(config, window, "run_node_cause", (*RUN, "node"), "")
        yield Record(runs, f"sum {config.by(*RUN, 'cause', 'family')} ({nodes}{_OF_RUNS})")
        unhooked = f"{nodes}{_UNHOOKED}"
    else:
        yield _counted(config, window, "run_cause", RUN, _OF_RUNS)
        unhooked = within(config, spent("run_cause") + _UNHOOKED, window)
    yield from _level(config, "run", RUN, runs, window)
    if window == config.window:
        yield from _level(config, "node", ("node",), nodes, window, ASKED_OF_NODES)
    yield from _level(config, "cluster", (), f"{spent('run_family', window)} or {unhooked}", window)


def _counted(config: Config, window: str, level: str, labels: tuple[str, ...], matchers: str) -> Record:
    by = config.by(*labels, "cause", "family")
    opened = f"sum {by} (clamp_max({OPEN}, {seconds(window)}))"
    parts = lines(within(config, spent(level) + matchers, window), labelled(opened, "part", "open"))
    return Record(
        spent(level, window),
        f"clamp_min(sum {by} (\n{indented(parts)}\n), 0) > 0",
        why="Counters do not change while a phase is open. Phases that have been open for long are added, to show a "
        "hang while it lasts. Bills do not include them.",
    )


def _level(
    config: Config,
    level: str,
    labels: tuple[str, ...],
    source: str,
    window: str,
    always: tuple[str, ...] = FAMILIES,
) -> Iterator[Record]:
    """The sum of a level, and the sum by family. Families in ``always`` are 0 where they took nothing."""
    total = spent(level, window)
    yield Record(total, f"sum {config.by(*labels)} ({source}) > 0")
    yield Record(spent(f"{level}_family", window), _families(config, labels, f"({source})", total, always))


def _families(
    config: Config, labels: tuple[str, ...], source: str, total: str, always: tuple[str, ...] = FAMILIES
) -> str:
    zeros = lines(*(labelled(f"0 * {total}", "family", family) for family in always))
    by, on = config.by(*labels, "family"), config.on(*labels, "family")
    return f"sum {by} {source}\nor {on} (\n{indented(zeros)}\n)"


def _shares(config: Config, window: str, *, nodes: bool) -> Iterator[Record]:
    """``nodes`` says whether to record the shares of nodes. Only signals need them; panels compute those they show."""
    levels = (
        *((("node_family", "node", ("node",)),) if nodes else ()),
        ("run_family", "run", RUN),
        ("run_cause", "run", RUN),
        ("cluster_family", "cluster", ()),
    )
    for level, whole, labels in levels:
        yield Record(
            share(level, window),
            f"{spent(level, window)}\n/ {config.on(*labels)} group_left ()\n{spent(whole, window)}",
        )


def _goodput(window: str) -> Iterator[Record]:
    compute = '{family="compute"}'
    yield Record(
        goodput("run", window),
        f"sum without (family) ({share('run_family', window)}{compute})",
        why="Compute divided by wall time. Repeated steps do not count as compute, but as lost.",
    )
    families = spent("cluster_family", window)
    yield Record(
        goodput("cluster", window),
        f"sum without (family) ({families}{compute})\n/\n"
        f'(sum without (family) ({families}{{family!="{UNHOOKED_FAMILY}"}}) > 0)',
        why="Ranks only, because the goodput of a GPU without a ledger is not known.",
    )


def _rates(config: Config, window: str) -> Iterator[Record]:
    """Rates as a number of GPUs: the share of the seconds that live ranks really had, times the number of ranks.

    Seconds divided by the length of the window would be too low after the start of a run, until the window is full.
    """
    nodes = "run_node_cause", (*RUN, "node"), RUN_NODE_RANKS
    level, of_level, live = nodes if window == config.window else ("run_cause", RUN, RUN_RANKS)
    place, counted = config.on(*of_level), f"{spent(level, window)}{_OF_RUNS}"
    ranks = f"({live} / {place} sum {config.by(*of_level)} ({counted}))"
    runs, families = device_seconds("run", window), device_seconds("run_family", window)
    yield Record(
        runs,
        f"sum {config.by(*RUN)} (\n  {live} and {place} {counted}\n)",
        why="The number of live ranks whose seconds are known.",
    )
    weighted = f"({counted}\n* {place} group_left ()\n{ranks})"
    yield Record(
        families,
        _families(config, RUN, f"(\n{indented(weighted)}\n)", runs),
        why="The shares of the recorded seconds, times the ranks, so that the value is also right for a run that "
        "is younger than the window.",
    )
    unhooked = f'{spent("cluster_family", window)}{{family="{UNHOOKED_FAMILY}"}} / {seconds(window)}'
    yield Record(device_seconds("cluster_family", window), f"sum {config.by('family')} ({families})\nor\n{unhooked}")
