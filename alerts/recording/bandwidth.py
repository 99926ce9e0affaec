"""Steps and step times of runs, and the bandwidth that a run uses compared with that of its links."""

from __future__ import annotations

from ...agent.metrics.ranks import RANK, RUN
from ...agent.metrics.runs import RUN_PLACE
from ...ledger.bus import MESSAGES, PASSES
from ...ledger.causes import COLLECTIVE_OPS, OUTSIDE_LOOP
from ..config import Config
from ..promql import any_of, indented, lines, seconds
from ..rule import Record
from . import group_bandwidth
from .books import last_value
from .group_bandwidth import BEST, LEAST_WAITS
from .names import (
    NODE_LINK,
    NODE_NVLINK,
    RUN_LINK,
    RUN_NODE_RANKS,
    RUN_RANKS,
    bus_bandwidth,
    rank_samples,
    since_first_step,
    step_buckets,
    step_seconds,
    stepping,
    steps,
    transfer_bandwidth,
)
from .nodes import of_nodes
from .shares import counted

SOME_RANKS = 'rank=~"0|.*[05]0"'
"""The ranks whose step times are recorded: the first, and every fiftieth of a large run. All ranks step together."""
STEPPING_RANKS = 'rank=~"[0-9]|.*[05]0"'
"""The ranks by which the steps of a run are counted: the first ten, and every fiftieth of a large run."""
QUANTILES = {"p50": 0.5, "p99": 0.99}


def rules(config: Config) -> tuple[Record, ...]:
    window, buckets = config.window, step_buckets(config.window)
    return (
        Record(
            stepping(window),
            _stepping(config),
            why="The time since the first step, at most the window. Rates are computed over this time.",
        ),
        Record(
            steps(window),
            f"max {config.by(*RUN)} (\n{indented(_stepped(config))}\n)\n/ {config.on(*RUN)} {stepping(window)}\n"
            f"or {config.on(*RUN)} 0 * {RUN_RANKS}",
            why="The maximum, because every rank counts the same steps.",
        ),
        Record(
            rank_samples(window),
            f"(avg {config.by(*RUN)} ({config.rate('whyidle_samples_total', window, STEPPING_RANKS)}) > 0)\n"
            f"* {seconds(window)} / {config.on(*RUN)} {stepping(window)}",
            why="Per rank, because only some ranks are read. Runs of different sizes are compared by it.",
        ),
        Record(
            buckets,
            f"sum {config.by(*RUN, 'le')} ({config.rate('whyidle_step_seconds_bucket', window, SOME_RANKS)})",
            why="Only every fiftieth rank, to read fewer series. All ranks step together, and each has 17 buckets.",
        ),
        *(
            Record(step_seconds(name, window), f"histogram_quantile({q:g}, {buckets}) >= 0")
            for name, q in QUANTILES.items()
        ),
        Record(
            bus_bandwidth(window),
            _bus_bandwidth(config),
            why="Per second of the whole time, not of the transfers only, and as if all ranks were one group.",
        ),
        *_transfers(config),
        *group_bandwidth.rules(config),
    )


def links(config: Config) -> tuple[Record, ...]:
    """The speeds of links. They hardly ever change."""
    nvlinks = config.series("whyidle_gpu_nvlink_rate_bytes_per_second")
    return (
        Record(NODE_LINK, _node_link(config), why="The speed of a node's links in one direction: RDMA if it has any."),
        Record(
            NODE_NVLINK,
            of_nodes(config, f"min {config.by('instance')} ({nvlinks})", "min"),
            why="What the NVLinks of one GPU carry in one direction. The minimum, because a ring uses all GPUs.",
        ),
        Record(
            RUN_LINK,
            f"min {config.by(*RUN)} (\n  0 * {RUN_NODE_RANKS} + {config.on('node')} group_left () {NODE_LINK}\n)\n"
            f"and {config.on(*RUN)} count {config.by(*RUN)} ({RUN_NODE_RANKS}) > 1",
            why="The speed of the slowest node, because a ring uses all nodes. Absent for a run on one node.",
        ),
        group_bandwidth.links(config),
    )


def _stepping(config: Config) -> str:
    """Seconds since a run's first step, by the node that has stepped longest: other nodes may have joined later."""
    here = counted(config, config.window, "run_node_cause", (*RUN, "node"), f'{{run!="", cause!~"{OUTSIDE_LOOP}"}}')
    per_rank = f"({here})\n/ {config.on(*RUN, 'node')} {RUN_NODE_RANKS}"
    return f"clamp_max(max {config.by(*RUN)} (\n{indented(per_rank)}\n), {seconds(config.window)})"


def _stepped(config: Config) -> str:
    """Steps within the window. For ranks that started within the window, all of their steps."""
    window = config.window
    counted = f"{config.series('whyidle_steps_total', STEPPING_RANKS)}[{window}]"
    lived = f"sum {config.by(*RANK)} ({last_value(config, 'whyidle_device_seconds_total', STEPPING_RANKS)})"
    count = f"last_over_time({counted})"
    return lines(
        f"({count} - last_over_time({counted} offset {window}) >= 0)",
        f"({count} and {config.on(*RANK)} {lived} < {seconds(window)})",
        config.increase("whyidle_steps_total", window, STEPPING_RANKS),
    )


def _bus_factor(op: str) -> str:
    """ledger.bus.bus_factor, as an expression of the number of ranks n."""
    if passes := PASSES.get(op):
        return f"{passes} * (n - 1) / n" if passes > 1 else "(n - 1) / n"
    return "0.5" if op in MESSAGES else "1"


def _bus_bandwidth(config: Config) -> str:
    groups: dict[str, list[str]] = {}
    for op in COLLECTIVE_OPS:
        groups.setdefault(_bus_factor(op), []).append(op)
    parts = lines(*(_moved(config, factor, ops) for factor, ops in groups.items()))
    moving = f"{config.on(*RUN_PLACE)} {config.rate('whyidle_run_collective_bytes_total', config.window)}"
    ranks = f"sum {config.by(*RUN)} ({RUN_NODE_RANKS} and {moving})"
    whole = f"sum {config.by(*RUN)} (\n{indented(parts)}\n)\n/ {config.on(*RUN)} {ranks}"
    return f"{whole}\n* {seconds(config.window)} / {config.on(*RUN)} {stepping(config.window)}"


def _transfers(config: Config) -> tuple[Record, Record]:
    """The bandwidth of transfers while ranks wait in them, and the run's own best, where groups are not known."""
    link = f"last_over_time({RUN_LINK}[{config.details_kept}])"
    now, families = transfer_bandwidth(f"rate{config.window}"), since_first_step(config.window)
    by, run = config.by(*RUN), config.on(*RUN)
    waits = f'(sum {by} ({families}{{family="network"}}) / {run} sum {by} ({families}) >= {LEAST_WAITS:g})'
    return (
        Record(
            now,
            f"{bus_bandwidth(config.window)} / {run} {waits} <= {run} {link}",
            why="The bytes of collectives, divided by the time that ranks wait in transfers. If the result exceeds the "
            "speed of the links, compute hides a part of the transfers and their speed is not known.",
        ),
        Record(
            transfer_bandwidth("best"),
            f"quantile_over_time({BEST}, {now}[{config.bandwidth_reference}])",
            why="A quantile, because a single fast window would determine the maximum for a day.",
        ),
    )


def _moved(config: Config, factor: str, ops: list[str]) -> str:
    rate = config.rate("whyidle_run_collective_bytes_total", config.window, f'op=~"{any_of(ops)}"')
    if "n" not in factor:
        return rate if factor == "1" else f"{rate} * {factor}"
    return f"{rate} * {config.on(*RUN)} group_left () ({factor.replace('n', RUN_RANKS)})"


def _node_link(config: Config) -> str:
    targets = config.by("instance")
    rdma = f"sum {targets} ({config.series('whyidle_rdma_port_rate_bytes_per_second')})"
    physical = config.series("whyidle_nic_info", 'kind="physical"')
    nic = (
        f"sum {targets} ({config.series('whyidle_nic_speed_bytes_per_second')} "
        f"and {config.on('instance', 'device')} {physical})"
    )
    return of_nodes(config, f"({rdma} or {config.on('instance')} {nic})")
