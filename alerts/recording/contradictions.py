"""Contradictions: counters that say the opposite of a verdict on the nodes where the time was lost."""

from __future__ import annotations

from typing import NamedTuple

from ...agent.metrics.ranks import RUN
from ..config import Config
from ..promql import indented
from ..rule import Record
from .names import (
    RUN_LINK,
    blocked_samples,
    contradicted,
    evidence,
    leading,
    link_use,
    major_faults,
    share,
    spent,
)
from .nodes import of_nodes

IDLE_FAMILIES = "storage|cpu|host"
"""Families in which the device is idle. In other families it may spin in a collective, which counts as busy."""
QUEUED_CAUSES = "data_queue|collective_queue"


CONTRADICTIONS: dict[str, str] = {
    "idle_links": "its links carry nothing while processes wait for its CPUs",
    "idle_storage": "its ranks read and write nothing, and no disk or network mount has anything to do",
    "idle_cpus": "many CPUs of its nodes are idle",
    "busy_gpus": "its GPUs are busy at the same time",
}
"""Contradiction -> what it says, in words that can follow *but*."""


class Contradiction(NamedTuple):
    """``nodes`` is an expression with a sample for each node on which the contradiction holds.

    If ``causes`` is not empty, only the time lost to these causes counts.
    """

    name: str
    families: str
    nodes: str
    why: str
    causes: str = ""
    of_runs: str = ""


def rules(config: Config) -> tuple[Record, ...]:
    return tuple(_rule(config, each) for each in _contradictions(config))


def _rule(config: Config, of: Contradiction) -> Record:
    families, run = config.on(*RUN, "family"), config.on(*RUN)
    matchers = f'run!="", family=~"{of.families}"' + (f', cause=~"{of.causes}"' if of.causes else "")
    lost = f"sum {config.by(*RUN, 'node', 'family')} ({spent('run_node_cause', config.window)}{{{matchers}}})"
    whole = f'{spent("run_family", config.window)}{{family=~"{of.families}"}}'
    return Record(
        contradicted(config.window),
        f"sum {config.by(*RUN, 'family')} (\n  {lost}\n  * {config.on('node')} group_left ()\n{indented(of.nodes)}\n)\n"
        f"/ {families} {whole}\n>= {config.contradicted_share:g}\n"
        f"and {families} {leading(config.window)}" + (f"\nand {run} {of.of_runs}" if of.of_runs else ""),
        {"contradiction": of.name},
        why=of.why,
    )


def _contradictions(config: Config) -> tuple[Contradiction, ...]:
    return (
        Contradiction(
            "idle_links",
            "network",
            _idle_links(config),
            "Waits in transfers while the links carry nothing and the node has too few CPUs: the threads that drive "
            "the transfers wait for a CPU. Not for runs on one node, whose transfers use no links.",
            of_runs=RUN_LINK,
        ),
        Contradiction(
            "idle_storage",
            "storage",
            _idle_storage(config),
            "Blocked reads or saves while ranks read and write nothing, and disks and network file systems are idle. "
            "The ranks wait for something else, such as a lock, a queue or a sleep.",
        ),
        Contradiction(
            "idle_cpus",
            "cpu",
            _idle_cpus(config),
            "Ranks that wait for a CPU while the node has idle CPUs. They may be restricted to some of the CPUs.",
            causes=QUEUED_CAUSES,
        ),
        Contradiction(
            "busy_gpus",
            IDLE_FAMILIES,
            _busy_gpus(config),
            "GPUs that are busy while their ranks say that they are idle. Another process uses them, or the ranks have "
            "work on streams that whyidle does not see.",
        ),
    )


def _idle_links(config: Config) -> str:
    queued = f'{evidence("cpu", config.window)}{{signal!="workers_busy"}}'
    return (
        f"group {config.by('node')} (\n"
        f"  max {config.by('node')} ({link_use(config.window)}) < {config.idle_share:g}\n"
        f"  and {config.on('node')} {queued}\n"
        f"  unless {config.on('node')} {evidence('network', config.window)}\n)"
    )


def _idle_storage(config: Config) -> str:
    rate, window, of_target, on = config.rate, config.window, config.by("instance"), config.on("instance")
    idle, few = f"{config.idle_share:g}", f"{config.idle_bytes_per_second:g}"
    moved = " + ".join(
        f"sum {of_target} ({rate(f'whyidle_process_syscall_{way}_bytes_total', window)})" for way in ("read", "write")
    )
    disks = f"max {of_target} ({rate('whyidle_disk_io_seconds_total', window)})"
    received = rate("whyidle_nic_bytes_total", window, 'direction="receive", device!="lo"')
    waits = (
        f"sum {of_target} ({received}) >= {few}",
        f"{major_faults(window)} >= 1",
        blocked_samples(window),
        f"max_over_time({config.series('whyidle_fuse_waiting_requests')}[{window}]) > 0",
        f"max_over_time({config.series('whyidle_filesystem_open_files')}[{window}]) > 0",
    )
    quiet = f"({moved} < {few})\nand {on} {disks} < {idle}\n" + "\n".join(f"unless {on} ({wait})" for wait in waits)
    return (
        f"group {config.by('node')} (\n{indented(of_nodes(config, f'({quiet})'))}\n"
        f"  unless {config.on('node')} {evidence('storage', window)}\n)"
    )


def _idle_cpus(config: Config) -> str:
    rate, window, of_target = config.rate, config.window, config.by("instance")
    modes = rate("whyidle_cpu_seconds_total", window, 'mode=~"idle|iowait"')
    idle = f"sum {of_target} ({modes})"
    throttled = f'{evidence("cpu", window)}{{signal="throttled"}}'
    free = f"({idle} / max {of_target} ({config.series('whyidle_cpu_online_cpus')}) >= {config.idle_cpus_share:g})"
    return (
        f"group {config.by('node')} (\n{indented(of_nodes(config, free))}\n  unless {config.on('node')} {throttled}\n)"
    )


def _busy_gpus(config: Config) -> str:
    rate, window, of_target = config.rate, config.window, config.by("instance")
    ranks = config.series("whyidle_rank_info")
    share_of = (
        f"{rate('whyidle_gpu_busy_seconds_total', window)} / {rate('whyidle_gpu_observed_seconds_total', window)}"
    )
    busy = f"avg {of_target} ({share_of} and {config.on('instance', 'uuid')} {ranks})"
    idle = f'sum {config.by("node")} ({share("node_family", window)}{{family=~"{IDLE_FAMILIES}"}})'
    return (
        f"group {config.by('node')} (\n{indented(of_nodes(config, busy))}\n"
        f"  + {config.on('node')} {idle} > 1 + {config.gpu_busy_margin:g}\n)"
    )
