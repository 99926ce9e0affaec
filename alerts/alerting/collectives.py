"""Alerts on ranks that other ranks wait for, and on runs in which all ranks wait."""

from __future__ import annotations

from ...agent.metrics.ranks import NODE_RANK, RANK, RUN
from ..config import Config
from ..recording.names import device_seconds, late
from ..rule import Alert, Group, Record
from .expressions import HERE, RUN_NAME, TARGET, each
from .pace import prompt

PIPELINE = 'family="pipeline"'
BUSY = "compute|eval|compile"
"""Phases of a pipeline stage in which it works, so that it is normal that other stages wait for its messages."""


HANGING = "rank_phase:whyidle_hanging:seconds"


def groups(config: Config) -> tuple[Group, ...]:
    alerts = (_hung(config), _stuck(config), _compute(config), _late(config))
    return (prompt(config, "collectives", (_hanging(config), *alerts)),)


def _hanging(config: Config) -> Record:
    phases = f"{config.series('whyidle_phase_open_seconds')} > {config.alerts.hang_seconds}"
    return Record(
        HANGING,
        f"max {config.by(*TARGET, *NODE_RANK, 'phase')} ({phases})",
        why="Phases that are open for so long that they may be hangs. Usually there are none, so the alerts that use "
        "them cost little.",
    )


def _hung(config: Config) -> Alert:
    """Within a node, the agent reports which ranks are missing. Across nodes, the series of all agents are combined.

    In a pipeline, a stage may wait for the messages of a busy stage, and the series do not show which waits are of this
    kind. So in a pipeline a rank of another node is missing only if its phase is not work (not in ``BUSY``). A rank
    that has ended has the series whyidle_rank_killed, and a live rank has not.
    """
    hang = config.alerts.hang_seconds
    rank, run, on = config.by(*TARGET, *NODE_RANK), config.by(*RUN), config.on(*TARGET, *RANK)
    missing = config.series("whyidle_collective_missing_seconds")
    waits = config.series("whyidle_phase_open_seconds", 'phase="collective"')
    ended = config.series("whyidle_rank_killed")
    run_pipelines = f"sum {run} ({config.series('whyidle_run_device_seconds_total', PIPELINE)}) > 0"
    phases, info = config.series("whyidle_phase_open_seconds"), config.series("whyidle_rank_info")
    phase = each(config, phases, RANK, " Its open phase is {{ .Labels.phase }}.", " It has ended.")
    place = each(config, info, RANK, " It runs on {{ .Labels.node }}, {{ .Labels.device }}.")
    return Alert(
        "WhyidleCollectiveHung",
        f"(\n  max {rank} ({missing} > {hang})\n  or {on}\n"
        f"  0 * max {rank} (\n"
        f'    {HANGING}{{phase!="collective"}}\n'
        f'    unless {on} ({HANGING}{{phase=~"{BUSY}"}} and {config.on(*RUN)} ({run_pipelines}))\n'
        f"    or {ended}\n  )\n"
        f'  + {config.on(*RUN)} group_left max {run} ({HANGING}{{phase="collective"}})\n)\n'
        f"unless {config.on(*RANK)} {waits}\n"
        f"unless {on} ({ended} and {config.on(*RANK)} {phases})",
        config.for_now,
        "critical",
        f"Run {RUN_NAME} hangs: rank {{{{ $labels.rank }}}} has not entered a collective.",
        f"Other ranks of run {RUN_NAME} have waited {{{{ $value | humanizeDuration }}}} in a collective for rank "
        "{{ $labels.rank }}." + place + phase + " Run whyidle hang on its node before NCCL's timeout ends the job.",
    )


def _stuck(config: Config) -> Alert:
    waits, run = f'{HANGING}{{phase="collective"}}', config.by(*RUN)
    ended = config.series("whyidle_rank_killed")
    live = f"sum {run} ({config.series('whyidle_run_ranks')})"
    return Alert(
        "WhyidleCollectiveStuck",
        f"min {run} ({waits})\n"
        f"and {config.on(*RUN)} count {run} ({waits}) >= {config.on(*RUN)} {live}\n"
        f"unless {config.on(*RUN)} ({ended} unless {config.on(*RANK)} {waits})",
        config.for_now,
        "critical",
        f"Run {RUN_NAME} hangs: every rank waits in a collective.",
        f"All ranks of run {RUN_NAME} that whyidle sees have been in a collective for at least "
        "{{ $value | humanizeDuration }}, and none is known to be missing. Either the transfer itself does not end, or "
        "ranks wait in different collectives, or no agent sees the missing rank. Run whyidle hang on the nodes of "
        "its ranks.",
    )


def _compute(config: Config) -> Alert:
    compute = config.series("whyidle_phase_open_seconds", 'phase="compute"')
    return Alert(
        "WhyidleComputeStuck",
        f"max {config.by(*RUN)} ({compute} > {config.alerts.compute_hang_seconds})",
        config.for_now,
        "critical",
        f"Run {RUN_NAME} may hang: a rank has computed for {{{{ $value | humanizeDuration }}}} without a break.",
        f"A rank of run {RUN_NAME} has been in one stretch of compute for {{{{ $value | humanizeDuration }}}}, "
        "without a batch, a collective or a step. A kernel, or a collective inside a compiled graph, may never "
        "end. Take its stack with py-spy.",
    )


def _late(config: Config) -> Alert:
    family = each(
        config,
        late("run_rank_family", config.window),
        RANK,
        "{{ if gt .Value 0.0 }} By {{ .Labels.family }}: {{ .Value | humanize }} idle GPUs.{{ end }}",
    )
    used = config.rate("whyidle_gpu_other_busy_seconds_total", config.window, HERE)
    other = each(
        config,
        f"{used} > {config.alerts.other_process_share}",
        ("uuid",),
        " Process {{ .Labels.pid }} of user {{ .Labels.uid }}, which belongs to no rank, uses "
        "{{ .Value | humanizePercentage }} of its GPU.",
        of=".Labels",
    )
    return Alert(
        "WhyidleLateRank",
        f"{late('run_rank', config.window)}\n"
        f"/ {config.on(*RUN)} group_left {device_seconds('run', config.window)}\n> {config.alerts.late_rank_share}",
        config.for_slow,
        "info",
        f"Run {RUN_NAME} waits {{{{ $value | humanizePercentage }}}} of its time for rank {{{{ $labels.rank }}}}.",
        f"In the last {config.window} the other ranks of run {RUN_NAME} waited for rank "
        "{{ $labels.rank }} in collectives."
        + each(config, config.series("whyidle_rank_info"), RANK, f" It runs on {{{{ .Labels.node }}}}.{other}")
        + family
        + " These waits take {{ $value | humanizePercentage }} of the time of all ranks.",
        keep_firing_for=config.keep_firing,
    )
