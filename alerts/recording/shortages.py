"""Shortages of CPU time that can be the reason for a verdict, as in the headline of `whyidle report`.

No cause includes this time, because no thread can see it (verdict/shortage.py). So it explains a verdict only if it is
large enough.
"""

from __future__ import annotations

from ...agent.metrics.ranks import RUN
from ...ledger.causes import OUTSIDE_LOOP
from ..config import Config
from ..promql import indented
from ..rule import Record
from .names import RUN_INSTANCE, RUN_RANKS, culprit, evidence, leading, queued_ranks, share, short_of_cpu, shortage
from .signals import STOLEN


def rules(config: Config) -> tuple[Record, ...]:
    """The rules, in the order in which they depend on each other."""
    short, degree = short_of_cpu(config.window), shortage(config.window)
    return (
        Record(
            short,
            _stolen(config),
            {"shortage": "stolen"},
            why="CPU time that the hypervisor took, on nodes where it took much. Ranks of a node may use the same "
            "CPUs, so one of them counts.",
        ),
        Record(
            short,
            _queued(config),
            {"shortage": "queued"},
            why="Time in which training threads queued for a CPU, of the ranks that did so for long.",
        ),
        Record(
            degree,
            _of_stragglers(config),
            {"family": "straggler"},
            why="The part of the waits for late ranks that the larger shortage and the other one can have caused, if "
            "ranks take turns at being late. A second that one rank lacks makes each other rank wait for at most a "
            "second.",
        ),
        Record(
            degree,
            _of_blocked(config),
            {"family": "host", "shortage": "stolen"},
            why="A thread whose CPU was stolen neither runs nor queues, so it seems blocked.",
        ),
    )


def _stolen(config: Config) -> str:
    place = (*RUN, "instance")
    stolen = config.rate("whyidle_rank_cpu_stolen_seconds_total", config.window)
    nodes = f"topk {config.by(*place)} (1, {RUN_INSTANCE})"
    return (
        f"sum {config.by(*RUN)} (\n  max {config.by(*RUN, 'node')} (\n    {nodes}\n"
        f"    * {config.on(*place)} group_left () max {config.by(*place)} ({stolen})\n  )\n"
        f'  and {config.on("node")} {evidence("cpu", config.window)}{{signal="{STOLEN}"}}\n)'
    )


def _queued(config: Config) -> str:
    return f"sum {config.by(*RUN)} ({queued_ranks(config.window)})"


def _of_stragglers(config: Config) -> str:
    run, by, short = config.on(*RUN), config.by(*RUN), short_of_cpu(config.window)
    waited = f'{leading(config.window)}{{family="straggler"}} * {run} {RUN_RANKS}'
    explained = f"sum {by} ({short}) * {run} clamp_min({RUN_RANKS} - 1, 1)\n/ {run} ({waited})"
    return _enough(
        config,
        f"0 * topk {by} (1, {short})\n+ {run} group_left () (\n{indented(explained)}\n)",
        f'unless {run} {culprit(config.window)}{{family="straggler"}}',
    )


def _of_blocked(config: Config) -> str:
    run, causes = config.on(*RUN), share("run_cause", config.window)
    blocked = f'{causes}{{cause="host_blocked"}}'
    others = f'max {config.by(*RUN)} ({causes}{{family="host", cause!~"{OUTSIDE_LOOP}|host_blocked"}})'
    return _enough(
        config,
        f'{short_of_cpu(config.window)}{{shortage="stolen"}}\n/ {run} ({blocked} * {run} {RUN_RANKS})',
        f'and {run} {leading(config.window)}{{family="host"}}\nunless {run} {others} > {run} {blocked}',
    )


def _enough(config: Config, degree: str, where: str) -> str:
    return f"clamp_max(\n{indented(degree)},\n  1\n)\n>= {config.explained_share:g}\n{where}"
