"""The metrics of the ranks, from their ledgers."""

from __future__ import annotations

from ...ledger.causes import CAUSE_FAMILY, CHECKPOINT_KINDS, COLLECTIVE_OPS, FAMILIES, LATE_FAMILIES
from .metric import Metric

NS = 1_000_000_000
"""The ledgers count durations in ns."""
RUN = ("owner", "run")
RANK = (*RUN, "rank")
"""The labels that identify a rank. `owner` is one of them, because two owners may have runs of the same name."""
NO_RANK = ("",) * len(RANK)
"""Replaces a rank's labels for a device that no rank uses."""
NODE_RANK = (*RANK, "node")
PLACE = (*NODE_RANK, "device")
DEVICE_SECONDS = Metric(
    "whyidle_device_seconds_total",
    "counter",
    "seconds",
    (*PLACE, "cause", "family"),
    "Device-seconds of a rank by cause, from the start of its process on. Summed over the attempts of a run. A cause "
    "that took no time has no series. A GPU without a ledger has no owner, run and rank here, and the causes "
    "unhooked_busy, unhooked_idle and empty.",
    "cause_ns",
    tuple(CAUSE_FAMILY.items()),
    sparse=True,
    per=NS,
)

GROUP_PARTS: tuple[str, ...] = ("network", "straggler", "pipeline", "unsplit")
GROUP_WAITS = Metric(
    "whyidle_group_wait_seconds_total",
    "counter",
    "seconds",
    (*RANK, "group", "part"),
    "Waits of a rank in the collectives of one process group, by their split. The part unsplit is the "
    "time that could not be split. The group unknown contains calls whose process group whyidle does not know.",
    "<group waits>",
    per=NS,
)
GROUP_CALLS = Metric(
    "whyidle_group_calls_total",
    "counter",
    "calls",
    (*NODE_RANK, "group"),
    "Collectives for which a rank has waited, by process group.",
    "<group calls>",
)

_SHARED = "Ranks of a node may share CPUs, so use a ratio or a maximum and not a sum."

METRICS: tuple[Metric, ...] = (
    DEVICE_SECONDS,
    Metric(
        "whyidle_device_pending_seconds",
        "gauge",
        "seconds",
        RANK,
        "Waits in collectives that are not split yet, so they are in no cause. Waits that cannot be split get "
        "the cause collective.",
        "<pending>",
    ),
    Metric(
        "whyidle_phase_open_seconds",
        "gauge",
        "seconds",
        (*PLACE, "phase"),
        "For how long a live rank has been in its current phase. A hang shows here while it lasts.",
        "<open phase>",
    ),
    Metric("whyidle_steps_total", "counter", "steps", RANK, "Optimizer steps, repeated ones included.", "steps"),
    Metric(
        "whyidle_samples_total",
        "counter",
        "samples",
        RANK,
        "Samples trained on. Absent if their number is not known.",
        "samples",
    ),
    Metric("whyidle_batches_total", "counter", "batches", RANK, "Batches that reached the loop.", "batches"),
    Metric(
        "whyidle_step_seconds",
        "histogram",
        "seconds",
        RANK,
        "Wall time of a step, from one optimizer step's end to the next.",
        "step_buckets",
        per=NS,
    ),
    Metric(
        "whyidle_collective_bytes_total",
        "counter",
        "bytes",
        (*RANK, "op"),
        "Bytes handed to collectives by this rank, by operation.",
        "collective_bytes",
        tuple((op,) for op in COLLECTIVE_OPS),
        sparse=True,
    ),
    Metric(
        "whyidle_collective_calls_total",
        "counter",
        "calls",
        (*RANK, "op"),
        "Collectives issued by this rank, by operation.",
        "collective_calls",
        tuple((op,) for op in COLLECTIVE_OPS),
        sparse=True,
    ),
    Metric(
        "whyidle_collectives_total",
        "counter",
        "waits",
        RANK,
        "Waits in collectives that the rank has begun.",
        "collectives",
    ),
    Metric(
        "whyidle_collective_missing_seconds",
        "gauge",
        "seconds",
        NODE_RANK,
        "For how long a live rank of this node has waited in a collective that this rank has not entered. A rank that "
        "nobody waits for has no series.",
        "<hang>",
    ),
    Metric(
        "whyidle_checkpoint_bytes_total",
        "counter",
        "bytes",
        (*RANK, "kind"),
        "Bytes of checkpoints, saved or loaded.",
        "checkpoint_bytes",
        tuple((kind,) for kind in CHECKPOINT_KINDS),
    ),
    Metric(
        "whyidle_checkpoints_total",
        "counter",
        "checkpoints",
        (*RANK, "kind"),
        "Checkpoints, saved or loaded.",
        "checkpoints",
        tuple((kind,) for kind in CHECKPOINT_KINDS),
    ),
    Metric(
        "whyidle_late_seconds_total",
        "counter",
        "seconds",
        (*NODE_RANK, "family"),
        "Time by which this rank was late at collectives while others waited for it, by the family that made it late. "
        "A family that did not make it late has no series.",
        "late_ns",
        tuple((family,) if family in LATE_FAMILIES else None for family in FAMILIES),
        sparse=True,
        per=NS,
    ),
    Metric(
        "whyidle_late_steps_total",
        "counter",
        "steps",
        RANK,
        "Steps in which this rank was the last to arrive. If the numbers of all ranks are similar, they take turns.",
        "late_steps",
    ),
    Metric(
        "whyidle_waited_for_seconds_total",
        "counter",
        "seconds",
        (*RANK, "family"),
        "Waits for late ranks and for other pipeline stages (causes straggler and pipeline), by the family that made "
        "those ranks late, if it is known. Families without such waits have no series.",
        "waited_for_ns",
        tuple((family,) for family in FAMILIES),
        sparse=True,
        per=NS,
    ),
    Metric(
        "whyidle_pipeline_bubble_seconds_total",
        "counter",
        "seconds",
        RANK,
        "What the schedule of a pipeline costs at least: (stages − 1) / microbatches × the quickest stage's own time. "
        "A stage waits a part of it in a collective, if it has no more messages.",
        "bubble_ns",
        per=NS,
    ),
    GROUP_WAITS,
    GROUP_CALLS,
    Metric(
        "whyidle_rank_cpu_asked_seconds_total",
        "counter",
        "seconds",
        RANK,
        "CPU time that anybody asked for on the CPUs that the rank may use, since its first step: they were busy, or "
        f"their time was stolen. {_SHARED} Absent if the rank cannot read it.",
        "cpu_asked_ns",
        sparse=True,
        per=NS,
    ),
    Metric(
        "whyidle_rank_cpu_stolen_seconds_total",
        "counter",
        "seconds",
        RANK,
        "The part of whyidle_rank_cpu_asked_seconds_total in which the hypervisor gave the CPUs to other machines "
        f"(steal). {_SHARED} Absent if nothing was stolen.",
        "cpu_stolen_ns",
        sparse=True,
        per=NS,
    ),
    Metric(
        "whyidle_rank_cpu_queued_seconds_total",
        "counter",
        "seconds",
        RANK,
        "Time for which the training thread of the rank was ready to run and had no CPU, in all phases, since its "
        "first step. It grows where there are more threads than CPUs, or where the cgroup is throttled. Absent if "
        "it never queued.",
        "cpu_queued_ns",
        sparse=True,
        per=NS,
    ),
    Metric(
        "whyidle_rank_used_cpu_seconds_total",
        "counter",
        "seconds",
        RANK,
        "CPU time of the rank, its data workers and what else it has started that is not a rank, since shortly after "
        "its first step. Compare its rate with whyidle_rank_allowed_cpus.",
        "used_cpu_ns",
        sparse=True,
        per=NS,
    ),
    Metric(
        "whyidle_rank_allowed_cpus",
        "gauge",
        "cpus",
        (*NODE_RANK, "by"),
        "CPUs that a live rank may use: the smaller one of its affinity and of the least quota of its control groups. "
        f"The label by is affinity or quota, or empty if it may use all CPUs of the node. {_SHARED}",
        "<allowed cpus>",
    ),
    Metric(
        "whyidle_rank_memory_used_bytes",
        "gauge",
        "bytes",
        (*NODE_RANK, "of"),
        "Memory in use, without the file cache that the kernel can take back, where a live rank is nearest to a limit. "
        f"The label of is group for its control group, above for a group above it, or node. {_SHARED}",
        "<used memory>",
    ),
    Metric(
        "whyidle_rank_memory_limit_bytes",
        "gauge",
        "bytes",
        (*NODE_RANK, "of"),
        "The limit that belongs to whyidle_rank_memory_used_bytes.",
        "<memory limit>",
    ),
    Metric(
        "whyidle_rank_info",
        "gauge",
        "info",
        (*PLACE, "uuid", "world_size", "local_rank", "attempt", "pid"),
        "Identity of a rank's newest attempt, to join on; always 1. The pid is the one in the PID namespace of "
        "the rank.",
        "<identity>",
    ),
    Metric(
        "whyidle_world_size",
        "gauge",
        "ranks",
        RANK,
        "Ranks of the run, by the rank's newest attempt. If fewer are up, the others have ended, or no agent "
        "sees them.",
        "<world size>",
    ),
    Metric("whyidle_rank_up", "gauge", "bool", RANK, "1 while the process of the rank lives, 0 after its end.", "<up>"),
    Metric(
        "whyidle_rank_killed",
        "gauge",
        "bool",
        NODE_RANK,
        "1 if the process of the rank was killed or crashed, otherwise 0. A rank that lives has no series.",
        "<killed>",
    ),
    Metric(
        "whyidle_rank_out_of_memory",
        "gauge",
        "bool",
        (*NODE_RANK, "evidence"),
        "1 if the rank was killed because memory ran out. The label evidence is log (the kernel's log names its "
        "process), count (the kernel killed processes of its control group at that time) or limit (only its memory is "
        "known: at least 90 % of its limit at the last look). Other ranks have no series.",
        "<out of memory>",
    ),
    Metric(
        "whyidle_rank_failed",
        "gauge",
        "bool",
        NODE_RANK,
        "1 if an uncaught exception or `sys.exit` with a status other than 0 ended the rank, otherwise 0. A rank that "
        "lives has no series.",
        "<failed>",
    ),
    Metric(
        "whyidle_rank_stopped",
        "gauge",
        "bool",
        NODE_RANK,
        "1 after the training's own handler of SIGTERM has run in the rank: somebody has asked it to end, as in a "
        "preemption. Otherwise there is no series.",
        "<stopped>",
    ),
    Metric(
        "whyidle_rank_restored_step",
        "gauge",
        "steps",
        (*RANK, "beginning", "saved_by", "requeues"),
        "The step of the checkpoint that the rank's newest attempt has restored. The label beginning is continued for "
        "the newest checkpoint, returned for an older one with the same command, and branched for an older one with "
        "another command. The attempt saved_by has saved it; -1 if that is not known. The label requeues is how often "
        "the scheduler had started the job again. Absent if nothing was restored, or if it is not known what.",
        "<restored>",
    ),
    Metric(
        "whyidle_rank_unused_gpus",
        "gauge",
        "gpus",
        (*NODE_RANK, "reason"),
        "GPUs that a live rank was given and does not use: it trains on the CPU. The reason is model (GPUs are "
        "visible, and the model is on the CPU), build (this torch has no CUDA or ROCm), hidden (the job's environment "
        "hides them), driver (the driver refuses them) or absent (the scheduler gave GPUs that the process cannot "
        "open). A rank that uses a GPU, or that was given none, has no series.",
        "<unused gpus>",
    ),
    Metric(
        "whyidle_run_spare_gpus",
        "gauge",
        "gpus",
        (*RUN, "node"),
        "GPUs of the node that ranks of the run see and that no rank uses. A run that uses everything that it "
        "sees has no series.",
        "<spare gpus>",
    ),
    Metric(
        "whyidle_hook_state",
        "gauge",
        "info",
        (*RANK, "hook", "state"),
        "The current state of each hook (absent, active or failed); always 1.",
        "<hooks>",
    ),
    Metric(
        "whyidle_hook_faults_total",
        "counter",
        "faults",
        RANK,
        "Errors in whyidle itself that a hook caught.",
        "faults",
    ),
    Metric(
        "whyidle_unmeasured_total",
        "counter",
        "intervals",
        RANK,
        "Intervals that the device clock could not measure; their time is in the cause unattributed.",
        "unmeasured",
    ),
    Metric(
        "whyidle_ledger_errors_total",
        "counter",
        "ledgers",
        ("reason",),
        "Ledgers that could not be used, each counted once per reason.",
        "<errors>",
    ),
)
