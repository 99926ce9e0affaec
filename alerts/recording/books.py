"""What ranks have on their books, and what was added since the last evaluation: every second in exactly one.

`increase()` cannot do this. It sees nothing between the last sample of one window and the first of the next, and it
stretches what it saw to the whole window: a save of 4 s that ends between two scrapes becomes 0 s or 5 s. So the last
value of each counter is recorded, and the next evaluation takes it off: windows that meet without gap or overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...agent.metrics.gpu import UNHOOKED_FAMILY
from ...agent.metrics.ranks import RANK, RUN
from ..config import Config
from ..promql import indented
from ..rule import Record
from .names import RANK_PLACE, UNKNOWN_RANKS, lateness, spent, total, waited_for

DEVICE_TOTAL = total("rank_cause", "device_seconds")
LATE_TOTAL = total("rank_family", "late_seconds")
WAITED_FOR_TOTAL = total("rank_family", "waited_for_seconds")
REMEMBERED = "5m"
"""For how long the last value of a counter stands where scrapes fail: what was missed is added when they succeed."""
MISSED = "4m"
"""How old the last evaluation may be. A total that is gone stood still for longer than that, and adds nothing more."""

SAMPLED = {"evidence": "sampled"}
# By the family: for a matcher such as run!="" Prometheus goes through every series that has a run.
_OF_RANK, _OF_NO_RANK = f'family!="{UNHOOKED_FAMILY}"', f'family="{UNHOOKED_FAMILY}"'
_OF_RANKS = 'collector="ranks"'


def rules(config: Config) -> tuple[Record, ...]:
    """In the order in which they build upon each other."""
    return (*_totals(config), _unknown(config), *_increases(config))


def _last(config: Config, metric: str, matchers: str = "") -> str:
    return f"last_over_time({config.series(metric, matchers)}[{REMEMBERED}])"


def _totals(config: Config) -> Iterator[Record]:
    place = config.by("instance", *RANK, "node")
    yield Record(
        RANK_PLACE,
        f"group {place} ({_last(config, 'whyidle_rank_info')})",
        why="On which node each rank is, for counters that do not say it.",
    )
    metric = "whyidle_device_seconds_total"
    # Two rules in place of one with `or`, which would compare the labels of all series.
    yield Record(
        DEVICE_TOTAL,
        f"max {config.by(*RANK, 'node', 'cause', 'family')} ({_last(config, metric, _OF_RANK)} > 0)",
        why="The last value within some minutes, so that a scrape that fails leaves no gap. The maximum, so that an "
        "agent that comes back under another address does not count twice. Zeros are left out: most causes of a rank "
        "are.",
    )
    yield Record(
        DEVICE_TOTAL,
        f"max {config.by('node', 'device', 'cause', 'family')} ({_last(config, metric, _OF_NO_RANK)} > 0)",
        {"run": ""},
        why="The same of devices that no rank drives. An empty label is none: it only tells the rules apart.",
    )
    yield Record(
        DEVICE_TOTAL,
        _gaps(config),
        {"cause": "host", "family": "host", **SAMPLED},
        why="Compute in which a GPU's own counters saw nothing run: no more than there was compute, as in the report. "
        "It is the host's time, and is taken off compute below.",
    )
    for name, counter in (
        (LATE_TOTAL, "whyidle_late_seconds_total"),
        (WAITED_FOR_TOTAL, "whyidle_waited_for_seconds_total"),
    ):
        yield Record(name, _placed(config, counter, "family"))


def _placed(config: Config, counter: str, *labels: str) -> str:
    """The last values of a counter of ranks, by rank and node."""
    by, on = config.by(*RANK, "node", *labels), config.on("instance", *RANK)
    return f"max {by} (\n  ({_last(config, counter)} > 0)\n  * {on} group_left (node) {RANK_PLACE}\n)"


def _gaps(config: Config) -> str:
    compute = f'{DEVICE_TOTAL}{{cause="compute"}}'
    idle = indented(_placed(config, "whyidle_compute_idle_seconds_total"))
    rest = f"clamp_min(\n  {compute} - {config.on(*RANK, 'node')} group_left ()\n{idle}, 0\n)"
    return f"{compute} - {rest}"


def _unknown(config: Config) -> Record:
    heard = f"{config.series('whyidle_collector_up', _OF_RANKS)} offset {config.interval} == 1"
    return Record(
        UNKNOWN_RANKS,
        f"group {config.by(*RANK, 'node')} (\n  {RANK_PLACE}\n"
        f"  unless {config.on(*RANK, 'node')} {RANK_PLACE} offset {config.interval}\n"
        f"  unless {config.on('instance')} {heard}\n)",
        why="Ranks that were not there at the last evaluation, when nobody heard of their agent either: nobody knows "
        "how much of their counters was counted before. Of any other rank, a counter that is new is new too.",
    )


def _increases(config: Config) -> Iterator[Record]:
    yield Record(
        spent("rank_cause"),
        f"({_grown(config, DEVICE_TOTAL)}) != 0",
        why="Device-seconds that were added since the last evaluation. A counter that fell has begun anew.",
    )
    yield Record(
        spent("rank_cause"),
        f"-({_grown(config, DEVICE_TOTAL + _matchers(SAMPLED))}) != 0",
        {"cause": "compute", "family": "compute", **SAMPLED},
        why="What of them is the host's time is not compute.",
    )
    yield Record(spent("run_node_cause"), f"sum {config.by(*RUN, 'node', 'cause', 'family')} ({spent('rank_cause')})")
    yield Record(
        lateness(),
        f"sum {config.by(*RANK, 'family')} (\n{indented(_grown(config, LATE_TOTAL))}\n) > 0",
    )
    yield Record(
        waited_for("run_node_family"),
        f"sum {config.by(*RUN, 'node', 'family')} (\n{indented(_grown(config, WAITED_FOR_TOTAL))}\n) != 0",
        why="The ranks themselves find out what made late whom they waited for, a few steps later.",
    )


def _grown(config: Config, name: str) -> str:
    """By how much recorded totals have grown since the last evaluation, or the one before it if that was missed."""
    return f"idelta({name}[{MISSED}]) >= 0\nor\n({name} unless {config.on(*RANK, 'node')} {UNKNOWN_RANKS})"


def _matchers(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
