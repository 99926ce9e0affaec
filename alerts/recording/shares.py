"""Where device-seconds go within a window: per run and cluster, and per node in one window."""

from __future__ import annotations

from collections.abc import Iterator

from ...agent.metrics.gpu import UNHOOKED_FAMILY
from ...agent.metrics.ranks import RUN
from ...ledger.causes import FAMILIES
from ...verdict.unused import HEADLINE
from ..config import Config
from ..promql import indented, labelled, lines, seconds
from ..rule import Record
from .names import OPEN, RUN_RANKS, UNUSED, UNUSED_NOW, device_seconds, goodput, share, spent
from .ranks import unused

# Not run!="": for that matcher, Prometheus reads every series that has a run.
_OF_RUNS, _UNHOOKED = f'{{family!="{UNHOOKED_FAMILY}"}}', f'{{family="{UNHOOKED_FAMILY}"}}'
PRODUCTIVE = 'cause=~"compute|rollout"'
"""What brings a run forward on a device, as in `whyidle goodput`."""
ASKED_OF_NODES = ("compute", "network")
"""Families that panels and signals query by name for each node. With many nodes, zeros for all families would be too
many series."""


def rules(config: Config, window: str) -> tuple[Record, ...]:
    """The rules for a window, in the order in which they depend on each other."""
    return (*_seconds(config, window), *_shares(config, window), *_goodput(config, window), *_rates(config, window))


def of_nodes(config: Config) -> tuple[Record, ...]:
    """The seconds and shares of the ranks of each node, in the window of evidence. Signals and some panels use them."""
    window = config.window
    nodes = spent("run_node_cause", window)
    return (
        Record(
            nodes,
            counted(config, window, "run_node_cause", (*RUN, "node", "cause", "family"), _OF_RUNS),
            why="The seconds of each node's ranks within the window of evidence, open phases included. GPUs that no "
            "rank uses would make its losses look small.",
        ),
        *_level(config, "node", ("node",), nodes, window, ASKED_OF_NODES),
        _share(config, window, "node_family", "node", ("node",)),
    )


def within(config: Config, increases: str, window: str) -> str:
    """The sum of recorded increases over the evaluations in a window."""
    return f"sum_over_time({increases}[{config.within(window)}])"


def counted(config: Config, window: str, level: str, by: tuple[str, ...], matchers: str = "") -> str:
    """The seconds within a window, with those of open phases. ``matchers`` must fit the series of both."""
    opened = f"sum {config.by(*by)} (clamp_max({OPEN}{matchers}, {seconds(window)}))"
    parts = lines(within(config, spent(level) + matchers, window), labelled(opened, "part", "open"))
    return f"clamp_min(sum {config.by(*by)} (\n{indented(parts)}\n), 0) > 0"


def _seconds(config: Config, window: str) -> Iterator[Record]:
    runs = spent("run_cause", window)
    yield Record(
        runs,
        counted(config, window, "run_cause", (*RUN, "cause", "family"), _OF_RUNS),
        why="Counters do not change while a phase is open. Phases that have been open for long are added, to show a "
        "hang while it lasts. Bills do not include them.",
    )
    unhooked = within(config, spent("run_cause") + _UNHOOKED, window)
    yield from _level(config, "run", RUN, runs, window)
    yield from _level(config, "cluster", (), f"{spent('run_family', window)} or {unhooked}", window)


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


def _shares(config: Config, window: str) -> Iterator[Record]:
    """Shares of nodes are recorded apart (`of_nodes`); panels compute those of ranks, for the ranks that they show."""
    yield _share(config, window, "run_family", "run", RUN)
    yield _share(config, window, "run_cause", "run", RUN)
    yield _share(config, window, "cluster_family", "cluster", ())


def _share(config: Config, window: str, level: str, whole: str, labels: tuple[str, ...]) -> Record:
    return Record(
        share(level, window),
        f"{spent(level, window)}\n/ {config.on(*labels)} group_left ()\n{spent(whole, window)}",
    )


def _goodput(config: Config, window: str) -> Iterator[Record]:
    run, whole, runs = config.on(*RUN), spent("run", window), goodput("run", window)
    productive = f"sum {config.by(*RUN)} ({share('run_cause', window)}{{{PRODUCTIVE}}})\nor {run} 0 * {whole}"
    yield Record(
        runs,
        f"(\n{indented(productive)}\n)\n* {run} (1 - ({unused(config, window)} or {run} 0 * {whole}))",
        why="Compute and rollouts divided by wall time, on ranks that use the GPUs that they were given. Repeated "
        "steps do not count as compute, but as lost. Evaluations do not count: they bring a run no further.",
    )
    yield Record(
        goodput("cluster", window),
        f"sum {config.by()} ({runs} * {run} {whole})\n/\nsum {config.by()} ({whole})",
        why="Ranks only, because the goodput of a GPU without a ledger is not known.",
    )


def _rates(config: Config, window: str) -> Iterator[Record]:
    """Rates as a number of GPUs: the share of the seconds that live ranks really had, times the number of ranks.

    Seconds divided by the length of the window would be too low after the start of a run, until the window is full.
    """
    run, of_causes = config.on(*RUN), spent("run_cause", window)
    ranks = f"({RUN_RANKS} * {run} (1 - {UNUSED}) / {run} {spent('run', window)})"
    runs, families = device_seconds("run", window), device_seconds("run_family", window)
    yield Record(
        runs,
        f"{RUN_RANKS} and {run} {of_causes}",
        why="The number of live ranks of runs whose seconds are known.",
    )
    weighted = f"({of_causes}\n* {run} group_left ()\n{ranks})"
    yield Record(
        families,
        lines(
            _families(config, RUN, f"(\n{indented(weighted)}\n)", runs),
            labelled(UNUSED_NOW, "family", HEADLINE),
        ),
        why="The shares of the recorded seconds, times the ranks, so that the value is also right for a run that "
        "is younger than the window. Ranks that were given GPUs and use none are not among them: their GPUs are "
        f"`{HEADLINE}`.",
    )
    unhooked = f'{spent("cluster_family", window)}{{family="{UNHOOKED_FAMILY}"}} / {seconds(window)}'
    yield Record(
        device_seconds("cluster_family", window),
        f'sum {config.by("family")} ({families}{{family!="{HEADLINE}"}})\nor\n{unhooked}',
        why="GPUs that runs do not use are those of `unhooked`, where the agent sees GPUs.",
    )
