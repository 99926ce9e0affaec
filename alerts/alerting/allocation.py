"""Alerts on allocated GPUs that do nothing, on missing ranks, and on runs that crash again and again."""

from __future__ import annotations

from ...agent.metrics.ranks import NODE_RANK, RANK, RUN
from ..config import Config
from ..promql import lines
from ..recording.names import OPEN, RUN_RANKS
from ..rule import Alert, Group, Record
from .expressions import COUNT, HERE, NODE, RUN_NAME, TARGET, each, named, used
from .pace import patient

POD, GPU = ("namespace", "pod"), (*TARGET, "gpu", "uuid")
IDLE = "gpu:whyidle_gpu_idle:ratio"


def groups(config: Config) -> tuple[Group, ...]:
    alerts = (
        _idle(config),
        _unused(config),
        _spare(config),
        _count(config),
        _crashes(config),
        _killed(config),
        _out(config),
    )
    return (patient(config, "allocation", (_idle_gpus(config), *alerts)),)


def _idle_gpus(config: Config) -> Record:
    busy = config.rate("whyidle_gpu_busy_seconds_total", config.for_slow)
    seen = config.rate("whyidle_gpu_observed_seconds_total", config.for_slow)
    return Record(
        IDLE,
        f"max {config.by(*GPU)} ({busy} / ({seen} > 0.5)) < {config.alerts.allocated_busy_share}",
        why="The busy share of GPUs that are idle.",
    )


def _idle(config: Config) -> Alert:
    """Also covers GPUs that no rank reports, by the pod that has the GPU or by the processes on it."""
    on = config.on(*TARGET, "uuid")
    pods = f"max {config.by(*TARGET, 'uuid', *POD)} ({config.series('whyidle_gpu_pod_info')})"
    # The owner of a run is its namespace, and alerts are routed by owner.
    owned = f'label_replace({pods}, "owner", "$1", "namespace", "(.+)")'
    processes = f"{config.series('whyidle_gpu_processes')} > 0"
    of_pods = f"{owned} * {on} group_left (gpu) {IDLE}"
    of_others = f"{IDLE} and {on} {processes} unless {on} {pods}"
    return Alert(
        "WhyidleGpuAllocatedIdle",
        named(config, lines(of_pods, of_others)),
        config.alerts.allocated_for,
        "warning",
        f"GPU {{{{ $labels.gpu }}}} of {NODE} is allocated and idle.",
        f"GPU {{{{ $labels.gpu }}}} ({{{{ $labels.uuid }}}}) of {NODE} has been busy for less than "
        f"{{{{ {config.alerts.allocated_busy_share} | humanizePercentage }}}} of the time for "
        f"{config.alerts.allocated_for}."
        + each(
            config,
            _users(config),
            ("uuid",),
            " Rank {{ .Labels.rank }} of run {{ .Labels.run }} uses it.",
        )
        + each(
            config,
            _notebooks(config),
            ("uuid",),
            " Its notebook waits for its user: {{ .Value | humanizeDuration }} until now.",
        )
        + " {{ if $labels.pod }}It is allocated to the pod {{ $labels.namespace }}/"
        "{{ $labels.pod }}{{ else }}Processes use it{{ end }}. Ask the owner whether it is still needed.",
    )


def _users(config: Config) -> str:
    """The ranks that use a GPU, each once: it has two series while its agent moves, for example."""
    return f"group {config.by(*NODE_RANK, 'uuid')} ({config.series('whyidle_rank_info', HERE)})"


def _notebooks(config: Config) -> str:
    """For how long notebooks have waited for their users, by the GPU that each holds."""
    return f'{OPEN}{{phase="interactive"}} * {config.on(*NODE_RANK)} group_left (uuid) {_users(config)}'


def _unused(config: Config) -> Alert:
    gpus = config.series("whyidle_rank_unused_gpus")
    return Alert(
        "WhyidleGpuUnused",
        f"max {config.by(*RUN, 'node', 'reason')} ({gpus}) > 0",
        config.for_slow,
        "warning",
        f"Run {RUN_NAME} was given GPUs on {{{{ $labels.node }}}} and trains on the CPU.",
        "{{ $value }} GPUs are idle. The reason is {{ $labels.reason }}: the runbook says what to do. `whyidle report` "
        "says the same with the error of the driver, if there is one.",
    )


def _spare(config: Config) -> Alert:
    gpus = config.series("whyidle_run_spare_gpus")
    return Alert(
        "WhyidleGpusSpare",
        f"max {config.by(*RUN, 'node')} ({gpus}) > 0",
        config.for_slow,
        "info",
        f"Run {RUN_NAME} uses only some of its GPUs on {{{{ $labels.node }}}}.",
        "{{ $value }} of the GPUs that its ranks see are used by no rank. `whyidle report` says how to start a rank "
        "for each.",
    )


def _count(config: Config) -> Alert:
    """Each agent counts a rank once, so there are too many ranks only if several nodes have the same rank."""
    ended = config.series("whyidle_rank_killed")
    size = f"max {config.by(*RUN)} ({config.series('whyidle_world_size')} unless {config.on(*TARGET, *RANK)} {ended})"
    fewer = '{{ printf "%.0f" $value | reReplaceAll "-" "" }} fewer'
    return Alert(
        "WhyidleRankCount",
        f"{RUN_RANKS}\n- {config.on(*RUN)} {size}\n!= 0",
        config.for_slow,
        "warning",
        f"Run {RUN_NAME} has {{{{ if lt $value 0.0 }}}}{fewer}{{{{ else }}}}{{{{ $value }}}} more{{{{ end }}}} "
        "live ranks than its world size.",
        "{{ if lt $value 0.0 }}The missing ranks have ended, run without whyidle's hooks, or are on a node whose agent "
        "does not answer. The figures of the run do not include them.{{ else }}Two trainings have the same name, or "
        "ranks of an earlier attempt still live. The figures of the run include both.{{ end }}",
    )


def _crashes(config: Config) -> Alert:
    """Counts the starts of rank 0 only: all ranks of a run restart together. Only an agent beside a rank has a pod. It
    tells a start in a new pod from the one before, although its process often has the same pid."""
    hour = config.long_window
    attempts = config.series("whyidle_rank_info", 'rank="0"')
    every = f"group {config.by(*RUN, 'node', 'attempt', 'pid', 'pod')} (last_over_time({attempts}[{hour}]))"
    return Alert(
        "WhyidleCrashLoop",
        f"count {config.by(*RUN)} ({every}) > {config.alerts.crash_loop_starts}",
        "0s",
        "warning",
        f"Run {RUN_NAME} restarts again and again.",
        f"Run {RUN_NAME} started {{{{ $value }}}} times within {hour}.",
    )


def _killed(config: Config) -> Alert:
    hour = config.long_window
    kills = config.series("whyidle_memory_oom_kills_total")
    return Alert(
        "WhyidleOomKill",
        f"{named(config, f'increase({kills}[{hour}]) > 0')}\nand {config.on('node')} {used(hour)}",
        "0s",
        "warning",
        f"Processes on {NODE} were killed because memory ran out.",
        f"The kernel killed processes of {NODE}, which runs ranks, because the node or their control group ran "
        f"out of memory. Processes killed within {hour}: {COUNT}. Data workers or ranks may be among them. The "
        "kernel's log names them.",
    )


def _out(config: Config) -> Alert:
    """The memory of a rank has no series after its end, so the description looks back."""
    hour = config.long_window
    used = config.series("whyidle_rank_memory_used_bytes", HERE)
    bytes_of = "{{ .Value | humanize1024 }}B"
    least = each(config, f"min_over_time({used}[{hour}])", (*RANK, "node"), f" grew from {bytes_of}")
    last = each(config, f"last_over_time({used}[{hour}])", (*RANK, "node"), f" to {bytes_of}")
    limits = f"last_over_time({config.series('whyidle_rank_memory_limit_bytes', HERE)}[{hour}])"
    limit = each(config, limits, (*RANK, "node"), f" of {bytes_of}")
    return Alert(
        "WhyidleRankOutOfMemory",
        f"max {config.by(*RANK, 'node', 'evidence')} ({config.series('whyidle_rank_out_of_memory')}) > 0",
        "0s",
        "warning",
        f"Rank {{{{ $labels.rank }}}} of run {RUN_NAME} was killed because memory ran out.",
        f"{{{{ if eq $labels.evidence `limit` }}}}It was killed, or crashed, when its memory on {NODE} was near its "
        f"limit.{{{{ else }}}}The kernel has killed it on {NODE}.{{{{ end }}}} Within {hour}, the memory in use"
        f"{least}{last}{limit}. Steady growth is a leak; a jump is one large allocation. `whyidle report` says more.",
    )
