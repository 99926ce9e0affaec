"""Where the files of a run are and which links carry its transfers: time, achieved rates, and what is possible."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ...agent.metrics.ranks import RUN
from ...agent.metrics.runs import RUN_PLACE
from ..config import Config
from ..promql import indented, labelled, lines
from ..rule import Record
from .names import (
    LINK_LIMIT,
    MOUNT_LIMIT,
    link_bandwidth,
    link_resent,
    link_transfer_bandwidth,
    mount_bandwidth,
    mount_blocked,
)
from .traffic import DIRECTIONS

MOUNT = (*RUN, "mount", "fstype")
LINK = (*RUN, "kind", "link")


def rules(config: Config) -> tuple[Record, ...]:
    return (*_mounts(config), *_links(config))


def _mounts(config: Config) -> Iterator[Record]:
    window, limits = config.window, config.series("whyidle_run_mount_limit_bytes_per_second")
    blocked = config.rate("whyidle_run_mount_blocked_seconds_total", window)
    yield Record(
        mount_blocked(window),
        f"sum {config.by(*MOUNT, 'activity')} ({blocked})",
        why="How many ranks of a run are blocked at a mount, on average.",
    )
    yield Record(
        mount_bandwidth(window),
        _quotient(config, "mount_bytes", "mount_measured_seconds", *MOUNT, "counted_by"),
        why="The rate of a mount while ranks are blocked there: the mean over the nodes.",
    )
    yield Record(MOUNT_LIMIT, f"min {config.by(*MOUNT, 'limit_by')} ({limits})", why="The limit of the slowest node.")


def _links(config: Config) -> Iterator[Record]:
    window, by, place = config.window, config.by(*LINK), config.on(*RUN_PLACE, "kind", "link")
    carried = config.rate("whyidle_run_link_bytes_total", window)
    moved, waited = (config.rate(f"whyidle_run_link_wait_{what}_total", window) for what in ("bytes", "seconds"))
    limits, speeds = (config.series(f"whyidle_run_link_{what}_bytes_per_second") for what in ("limit", "speed"))
    ways = (f"sum {config.by(*LINK, 'direction')} ({carried})", *map(partial(_of_ports, config), DIRECTIONS))
    yield Record(
        link_bandwidth(window),
        f"max {by} (\n{indented(lines(*ways))}\n)",
        why="What a link carries for a run on all nodes, in the direction that carries more. An RDMA port has "
        "what anybody moved: nobody counts by queue pair.",
    )
    yield Record(
        link_transfer_bandwidth(window),
        f"sum {by} ({moved})\n/ (sum {by} ({waited}\n  / {place} {config.series('whyidle_run_link_ranks')}) > 0)",
        why="The rate of a link while ranks wait in collectives: of all ranks of a node together, as they share the "
        "link; the mean over the nodes.",
    )
    yield Record(
        LINK_LIMIT,
        f"min {config.by(*LINK, 'limit_by')} (\n  {limits}\n  or {place} {speeds}\n)",
        why="What is possible on the slowest node: a shaper's rate if there is one, otherwise the speed.",
    )
    yield Record(
        link_resent(window),
        _quotient(config, "link_resent_segments", "link_segments", *LINK),
        why="The share of segments that were sent again.",
    )


def _of_ports(config: Config, direction: str) -> str:
    """What the RDMA ports carry at which the ranks of a run have queue pairs."""
    moved = config.rate(f"whyidle_rdma_{direction}_bytes_total", config.window)
    ports = f'sum {config.by("instance", "link")} (label_join({moved}, "link", "/", "device", "port"))'
    ranks = config.series("whyidle_run_link_ranks", 'kind="rdma"')
    run = f"sum {config.by(*LINK)} (0 * {ranks} + {config.on('instance', 'link')} group_left () {ports})"
    return labelled(run, "direction", direction)


def _quotient(config: Config, what: str, per: str, *labels: str) -> str:
    """The increase of one counter of runs per increase of another, by ``labels``."""
    by = config.by(*labels)
    above, below = (f"sum {by} ({config.rate(f'whyidle_run_{name}_total', config.window)})" for name in (what, per))
    return f"{above}\n/ ({below} > 0)"
