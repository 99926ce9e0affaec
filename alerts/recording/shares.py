"""Where device-seconds go: per rank, node, run and cluster, by family and by cause."""

from __future__ import annotations

from collections.abc import Iterator

from ...agent.metrics.gpu import UNHOOKED_FAMILY
from ...agent.metrics.ranks import RANK, RUN
from ...ledger.causes import FAMILIES
from ..config import Config
from ..promql import indented, labelled, lines, seconds
from ..rule import Record
from .names import OPEN, device_seconds, goodput, share

_OF_RUNS = '{run!=""}'


def rules(config: Config, window: str) -> tuple[Record, ...]:
    """In the order in which they build upon each other."""
    return (*_ranks(config, window), *_above(config, window), *_shares(config, window), *_goodput(window))


def _ranks(config: Config, window: str) -> Iterator[Record]:
    whole = seconds(window)
    counted = f"{config.rate('whyidle_device_seconds_total', window)} > 0"
    by = config.by(*RANK, "node", "cause", "family")
    parts = lines(counted, f"clamp_max({OPEN}, {whole}) / {whole}", *_gaps(config, window))
    yield Record(
        device_seconds("rank_cause", window),
        f"sum {by} (\n{indented(parts)}\n)",
        why="Counters stand still while a phase is open, so a long one is added: a hang shows while it lasts. After "
        "its end the counters jump, and a window that began in it has more than a second per second: shares are of "
        "what there is. Zeros are left out: most causes of a rank are. What a GPU's own counters see idle in compute "
        "is the host's, as in the report.",
    )
    yield Record(
        device_seconds("rank_family", window),
        f"sum {config.by(*RANK, 'node', 'family')} ({device_seconds('rank_cause', window)})",
    )


def _gaps(config: Config, window: str) -> tuple[str, str]:
    """What is taken off a rank's compute, and what is put to its host time: no more than there is."""
    compute = config.rate("whyidle_device_seconds_total", window, 'cause="compute"')
    idle = config.rate("whyidle_compute_idle_seconds_total", window)
    rest = f"clamp_min({compute} - {config.on('instance', *RANK)} group_left () {idle}, 0)"
    gaps = labelled(f"{compute} - {rest}", "evidence", "sampled")  # a label that no counted second has
    return f"-1 * {gaps}", labelled(labelled(gaps, "cause", "host"), "family", "host")


def _above(config: Config, window: str) -> Iterator[Record]:
    """What is above ranks goes by way of causes, so that all ranks are looked at once for each level."""
    ranks = device_seconds("rank_cause", window)
    runs, nodes = device_seconds("run_cause", window), device_seconds("node_cause", window)
    yield Record(runs, f"sum {config.by(*RUN, 'cause', 'family')} ({ranks}{_OF_RUNS})")
    yield Record(nodes, f"sum {config.by('node', 'cause', 'family')} ({ranks})")
    yield from _level(config, "run", RUN, runs, window)
    yield from _level(config, "node", ("node",), nodes, window)
    yield from _level(config, "cluster", (), device_seconds("node_family", window), window)


def _level(config: Config, level: str, labels: tuple[str, ...], source: str, window: str) -> Iterator[Record]:
    """The sum, and its families: where there is anything, a family that took nothing took 0."""
    total = device_seconds(level, window)
    yield Record(total, f"sum {config.by(*labels)} ({source}) > 0")
    zeros = lines(*(labelled(f"0 * {total}", "family", family) for family in FAMILIES))
    yield Record(
        device_seconds(f"{level}_family", window),
        f"sum {config.by(*labels, 'family')} ({source})\nor {config.on(*labels, 'family')} (\n{indented(zeros)}\n)",
    )


def _shares(config: Config, window: str) -> Iterator[Record]:
    ranks = device_seconds("rank_family", window)
    on = config.on(*RANK, "node")
    yield Record(
        share("rank_family", window),
        f"{ranks}{_OF_RUNS}\n/ {on} group_left ()\nsum {config.by(*RANK, 'node')} ({ranks}{_OF_RUNS})",
    )
    levels = (
        ("node_family", "node", ("node",)),
        ("run_family", "run", RUN),
        ("run_cause", "run", RUN),
        ("cluster_family", "cluster", ()),
    )
    for level, whole, labels in levels:
        yield Record(
            share(level, window),
            f"{device_seconds(level, window)}\n/ {config.on(*labels)} group_left ()\n{device_seconds(whole, window)}",
        )


def _goodput(window: str) -> Iterator[Record]:
    compute = '{family="compute"}'
    yield Record(
        goodput("run", window),
        f"sum without (family) ({share('run_family', window)}{compute})",
        why="Compute by wall time; steps that are repeated are the family lost.",
    )
    families = device_seconds("cluster_family", window)
    yield Record(
        goodput("cluster", window),
        f"sum without (family) ({families}{compute})\n/\n"
        f'(sum without (family) ({families}{{family!="{UNHOOKED_FAMILY}"}}) > 0)',
        why="Of ranks alone: a GPU without a ledger has no goodput that is known.",
    )
