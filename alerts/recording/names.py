"""The names of recorded series that rules, alerts and dashboards share: ``level:metric:operations``."""

from __future__ import annotations

NOTEBOOKS = "interactive"
"""The family, in recorded series, of the cause of this name. A device that a notebook holds while it waits for its user
is idle for that reason alone, so a bill says so. No verdict has this family, because this time is outside the loop.
Agents export the cause with the family host."""

OPEN = "rank_phase:whyidle_open:seconds"
MISSING = "run_rank_family:whyidle_missing:seconds"
INSTANCE_NODE = "instance_node:whyidle_node:group"
TARGET_NODE = "job_instance_node:whyidle_node:group"
"""The node of each agent, without the label node if the agent does not know it."""
RUN_NODE_RANKS = "run_node:whyidle_ranks:count"
RUN_RANKS = "run:whyidle_ranks:count"
NODE_RANKS = "node:whyidle_ranks:count"
UNUSED = "run:whyidle_unused:ratio"
"""The share of a run's live ranks that use no GPU, although they were given some. 0 for most runs."""
UNUSED_NOW = "run:whyidle_unused_gpus:count"
"""GPUs that a live run was given and that no rank uses. A run that uses all has no series."""
RUN_GPUS = "run:whyidle_gpus:count"
"""GPUs of a live run: those of its ranks, and those that it does not use. A rank without a GPU counts as one, unless it
was given some."""
RANK_PLACE = "rank_instance_node:whyidle_rank:group"
RUN_INSTANCE = "instance_run_node:whyidle_run:group"
UNKNOWN_RUNS = "run_node:whyidle_unknown:group"
UNKNOWN_RANKS = "run_node:whyidle_unknown_ranks:group"

NODE_LINK = "node:whyidle_link_bytes:limit"
NODE_NVLINK = "node:whyidle_nvlink_bytes:limit"
RUN_LINK = "run:whyidle_link_bytes:limit"
GROUP_LINK = "run_group:whyidle_link_bytes:limit"
LINK_LIMIT = "run_link:whyidle_link_bytes:limit"
"""Bytes per second that are possible on a link of a run, by what limits it."""
MOUNT_LIMIT = "run_mount:whyidle_mount_bytes:limit"

CARRIED = "node_adapter:whyidle_carried_bytes:rate"
"""Bytes per second that an adapter of a node carries for anybody, by direction and protocol (tcp or rdma)."""
TRAFFIC_BYTES = "node_adapter:whyidle_traffic_bytes:rate"
"""Bytes per second of a node's adapter by direction, protocol and `traffic`: gpu, mount or rest."""
ADAPTER_SPEED = "node_adapter:whyidle_adapter_bytes:limit"
TRAFFIC_SHARE = "node_adapter:whyidle_traffic:ratio"
"""The share of an adapter's speed, by `traffic`: gpu (between GPUs) or storage. The direction with the higher share."""
COLLISION = "node_adapter:whyidle_collision:ratio"
"""The smaller of both shares, where both are high in one direction."""


def total(level: str, metric: str) -> str:
    """The last value of a counter."""
    return f"{level}:whyidle_{metric}:total"


def increase(level: str, metric: str, window: str = "") -> str:
    """The increase of counters within a window, or without one since the last evaluation."""
    return f"{level}:whyidle_{metric}:increase{window}"


def spent(level: str, window: str = "") -> str:
    """Device-seconds by a level such as rank_cause or run_family. With a window, open phases are included."""
    return increase(level, "device_seconds", window)


def billed(level: str) -> str:
    """Device-seconds since the last evaluation, each counted once. Waits count under what made the late rank late."""
    return increase(level, "billed_seconds")


LOST_BY_NODE = increase("node", "lost_seconds")
"""Billed device-seconds since the last evaluation that were not compute, by node."""
UNUSED_GPUS = increase("run", "unused_gpu_seconds")
"""Seconds since the last evaluation of GPUs that a run was given and that no rank used."""
ON_CPUS = increase("run_family", "on_cpus_seconds")
"""Billed device-seconds since the last evaluation of ranks that train on the CPU beside their GPUs."""
PRODUCTIVE_ON_CPUS = increase("run", "productive_on_cpus_seconds")
"""The same for compute of new steps and rollouts, which are not goodput there."""
LATE_BY_RANK = increase("run_rank", "late_seconds")
"""Device-seconds since the last evaluation for which other ranks waited for a rank."""
IDLE_BY_RANK = increase("rank", "idle_seconds")
"""Device-seconds of a rank that were not compute. Only their sums of an hour are recorded."""

EVIDENCE_BY_NODE = increase("node", "evidence_seconds")
"""The seconds in which each signal of a node agreed. Only their sums of an hour are recorded."""


def hourly(increases: str) -> str:
    """The sum of an hour of recorded increases, recorded once an hour."""
    return f"{increases}_hourly"


def steps(window: str) -> str:
    """Steps per second of a run."""
    return f"run:whyidle_steps:rate{window}"


def rank_samples(window: str) -> str:
    """Samples per second of a rank of a run, since its first step."""
    return f"run:whyidle_rank_samples:rate{window}"


def stepping(window: str) -> str:
    """Seconds within a window that are after a run's first step."""
    return f"run:whyidle_stepping_seconds:max{window}"


def step_buckets(window: str) -> str:
    """The histogram of a run's step times."""
    return f"run:whyidle_step_seconds_bucket:rate{window}"


def step_seconds(quantile: str, window: str) -> str:
    """A quantile of step times in seconds. ``quantile`` is written like p99."""
    return f"run:whyidle_step_seconds:{quantile}_{window}"


def bus_bandwidth(window: str) -> str:
    """Bytes per second and rank that the links of a run must move at least."""
    return f"run:whyidle_collective_busbw_bytes:rate{window}"


def transfer_bandwidth(operation: str) -> str:
    """Bus bandwidth while the ranks wait in transfers. ``operation`` is rate<window>, or best for the run's best."""
    return f"run:whyidle_transfer_busbw_bytes:{operation}"


def group_bus_bandwidth(window: str) -> str:
    """Bytes per second and rank that the links must move at least for one process group."""
    return f"run_group:whyidle_collective_busbw_bytes:rate{window}"


def group_transfer_bandwidth(operation: str) -> str:
    """Like transfer_bandwidth, of one process group that has members on several nodes."""
    return f"run_group:whyidle_transfer_busbw_bytes:{operation}"


def mount_blocked(window: str) -> str:
    """Seconds per second of all ranks of a run for which they are blocked at a mount, by activity."""
    return f"run_mount:whyidle_mount_blocked:rate{window}"


def mount_bandwidth(window: str) -> str:
    """Bytes per second of a mount while ranks of a run are blocked there."""
    return f"run_mount:whyidle_mount_bytes:rate{window}"


def link_bandwidth(window: str) -> str:
    """Bytes per second that a link carries for a run, in one direction. Waits or not."""
    return f"run_link:whyidle_link_bytes:rate{window}"


def link_transfer_bandwidth(window: str) -> str:
    """Bytes per second of a link while a rank of a run waits in a collective."""
    return f"run_link:whyidle_link_transfer_bytes:rate{window}"


def link_resent(window: str) -> str:
    """The share of the TCP segments of a run that were sent again, by link."""
    return f"run_link:whyidle_link_resent:ratio{window}"


def device_seconds(level: str, window: str) -> str:
    """Device-seconds per second of live ranks, as a number of GPUs. ``level``: run, run_family or cluster_family."""
    return f"{level}:whyidle_device_seconds:rate{window}"


def share(level: str, window: str) -> str:
    """Shares of device-seconds. They sum to 1 over the families or causes of a level."""
    return f"{level}:whyidle_share:ratio{window}"


def goodput(level: str, window: str) -> str:
    return f"{level}:whyidle_goodput:ratio{window}"


def since_first_step(window: str) -> str:
    """Device-seconds of a run by family since its first step. Verdicts are computed from them."""
    return increase("run_family", "window_seconds", window)


def lateness(window: str = "") -> str:
    """Seconds by which a rank was late, by what made it late."""
    return increase("run_rank_family", "lateness_seconds", window)


def late(level: str, window: str) -> str:
    """GPU-seconds per second for which other ranks waited for a rank. ``level``: run_rank_family or run_rank."""
    return f"{level}:whyidle_late:rate{window}"


def waited_for(level: str, window: str = "") -> str:
    """Waits for late ranks and other pipeline stages, by the family that made these late, as far as it is known."""
    return increase(level, "waited_for_seconds", window)


def culprit(window: str) -> str:
    """The rank that is latest because of the verdict's family. The value is the waiting that it causes."""
    return f"run_rank_family:whyidle_culprit:rate{window}"


def charged(window: str) -> str:
    """Shares of a run by family, with look-through."""
    return f"run_family:whyidle_charged:ratio{window}"


def too_short(window: str) -> str:
    """The steps of runs that are too short for a verdict."""
    return f"run:whyidle_too_short:steps{window}"


def leading(window: str) -> str:
    """The family that the verdict names. The value is its share."""
    return f"run_family:whyidle_leading:ratio{window}"


def verdict(window: str) -> str:
    """The family that the verdict names, with a label `corroboration`. The value is its share."""
    return f"run_family:whyidle_verdict:ratio{window}"


def evidence(family: str, window: str) -> str:
    """1 where a signal of a node agrees with a family, otherwise absent."""
    return f"node:whyidle_{family}_evidence:max{window}"


def link_use(window: str) -> str:
    """How busy the busiest link of a node is, as a share of what it can carry, by `link`: kind and direction."""
    return f"node_link:whyidle_link_use:max{window}"


def blocked_samples(window: str) -> str:
    """The share of samples that found a process of a rank in an uninterruptible wait, by agent."""
    return f"instance:whyidle_process_blocked:ratio{window}"


def major_faults(window: str) -> str:
    """Major page faults per second of a process of a rank, by agent."""
    return f"instance:whyidle_process_major_faults:rate{window}"


def queued_ranks(window: str) -> str:
    """The share of time for which a training thread queued for a CPU."""
    return f"rank:whyidle_cpu_queued:rate{window}"


def lost_by_node(window: str) -> str:
    """Device-seconds that runs lost to the families that counters can confirm, by node and family."""
    return f"run_node_family:whyidle_lost_seconds:increase{window}"


def baseline(family: str) -> str:
    """The baseline of a signal on a node: the share of time in which it appears while nothing is lost to its family.

    Absent if the signal hardly ever appears.
    """
    return f"node:whyidle_{family}_baseline:ratio"


def waiting_group(window: str) -> str:
    """The process group of a run with the most waits in transfers."""
    return f"run_group:whyidle_transfer_waits:rate{window}"


def confirmed(operation: str) -> str:
    """The degree to which counters confirm a loss: ratio<window> (0 to 1), or rate<window> (seconds per second)."""
    return f"run_family:whyidle_confirmed:{operation}"


def short_of_cpu(window: str) -> str:
    """CPU-seconds per second that the ranks of a run did not get, by `shortage`: stolen or queued."""
    return f"run:whyidle_cpu_shortage:rate{window}"


def shortage(window: str) -> str:
    """The part of the leading family's time that a shortage of CPU time can have caused, if this part is large."""
    return f"run_family:whyidle_shortage:ratio{window}"


def contradicted(window: str) -> str:
    """The part of the leading family's time that was lost where a counter contradicts it, if this part is large."""
    return f"run_family:whyidle_contradicted:ratio{window}"
