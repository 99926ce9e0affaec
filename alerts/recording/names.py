"""The names of recorded series that rules, alerts and dashboards share: ``level:metric:operations``."""

from __future__ import annotations

OPEN = "rank_phase:whyidle_open:seconds"
MISSING = "run_rank_family:whyidle_missing:seconds"
INSTANCE_NODE = "instance_node:whyidle_node:group"
RUN_NODE_RANKS = "run_node:whyidle_ranks:count"
RUN_RANKS = "run:whyidle_ranks:count"
NODE_RANKS = "node:whyidle_ranks:count"
RANK_PLACE = "rank_instance_node:whyidle_rank:group"
UNKNOWN_RUNS = "run_node:whyidle_unknown:group"
UNKNOWN_RANKS = "rank_node:whyidle_unknown:group"

NODE_LINK = "node:whyidle_link_bytes:limit"
RUN_LINK = "run:whyidle_link_bytes:limit"


def total(level: str, metric: str) -> str:
    """The last value of a counter that Prometheus saw."""
    return f"{level}:whyidle_{metric}:total"


def increase(level: str, metric: str, window: str = "") -> str:
    """What counters have grown by within a window; without one, since the last evaluation."""
    return f"{level}:whyidle_{metric}:increase{window}"


def spent(level: str, window: str = "") -> str:
    """Device-seconds; within a window, phases that are still open included. Level such as rank_cause, run_family."""
    return increase(level, "device_seconds", window)


def billed(level: str) -> str:
    """Device-seconds since the last evaluation, each once, waits for late ranks charged to what made those late."""
    return increase(level, "billed_seconds")


LOST_BY_NODE = increase("node", "lost_seconds")
"""The same, of what was no compute."""
LATE_BY_RANK = increase("run_rank", "late_seconds")
"""Device-seconds since the last evaluation for which the others waited for a rank."""


def steps(window: str) -> str:
    """Steps per second of a run."""
    return f"run:whyidle_steps:rate{window}"


def stepping(window: str) -> str:
    """For how long a run has been past its first step within a window."""
    return f"run:whyidle_stepping_seconds:max{window}"


def step_buckets(window: str) -> str:
    """The histogram of a run's step times."""
    return f"run:whyidle_step_seconds_bucket:rate{window}"


def step_seconds(quantile: str, window: str) -> str:
    """A quantile of step times; ``quantile`` such as p99."""
    return f"run:whyidle_step_seconds:{quantile}_{window}"


def bus_bandwidth(window: str) -> str:
    """Bytes per second and rank that the links of a run have to move at least."""
    return f"run:whyidle_collective_busbw_bytes:rate{window}"


def transfer_bandwidth(operation: str) -> str:
    """The same while the ranks wait in transfers: rateW, or best, what the run reached before."""
    return f"run:whyidle_transfer_busbw_bytes:{operation}"


def device_seconds(level: str, window: str) -> str:
    """Device-seconds per second of live ranks: how many GPUs; ``level`` is run, run_family or cluster_family."""
    return f"{level}:whyidle_device_seconds:rate{window}"


def share(level: str, window: str) -> str:
    """Shares that sum to 1 over the families or causes of a level."""
    return f"{level}:whyidle_share:ratio{window}"


def goodput(level: str, window: str) -> str:
    return f"{level}:whyidle_goodput:ratio{window}"


def since_first_step(window: str) -> str:
    """Device-seconds of a run by family, from the first step on: what verdicts are about."""
    return increase("run_family", "window_seconds", window)


def lateness(window: str = "") -> str:
    """By how many seconds a rank was late, by what made it late."""
    return increase("run_rank_family", "lateness_seconds", window)


def late(level: str, window: str) -> str:
    """GPU-seconds per second for which a rank made the others wait; level run_rank_family or run_rank."""
    return f"{level}:whyidle_late:rate{window}"


def waited_for(level: str, window: str = "") -> str:
    """Waits for late ranks and other pipeline stages, by the family that made those late, as far as it is known."""
    return increase(level, "waited_for_seconds", window)


def culprit(window: str) -> str:
    """The rank that is late most by the verdict's own family, and for how long it makes the others wait."""
    return f"run_rank_family:whyidle_culprit:rate{window}"


def charged(window: str) -> str:
    """Shares of a run by family after looking through stragglers."""
    return f"run_family:whyidle_charged:ratio{window}"


def leading(window: str) -> str:
    """The one family that the verdict names, and its share."""
    return f"run_family:whyidle_leading:ratio{window}"


def verdict(window: str) -> str:
    """The same with what node counters say to it."""
    return f"run_family:whyidle_verdict:ratio{window}"


def evidence(family: str, window: str) -> str:
    """1 where a signal of a node's counters agrees with a family; elsewhere there is none."""
    return f"node:whyidle_{family}_evidence:max{window}"


def baseline(family: str) -> str:
    """How often a signal of a node speaks while its ranks lose nothing to its family; absent where it hardly does."""
    return f"node:whyidle_{family}_baseline:ratio"


def waiting_group(window: str) -> str:
    """The process group of a run in whose transfers its ranks wait most."""
    return f"run_group:whyidle_transfer_waits:rate{window}"


def confirmed(operation: str) -> str:
    """To what degree counters confirm what was lost to a family: ratioW from 0 to 1, or rateW in seconds per second."""
    return f"run_family:whyidle_confirmed:{operation}"


def contradicted(window: str) -> str:
    """The part of the leading family's time that was lost where a counter says the opposite, if it is large."""
    return f"run_family:whyidle_contradicted:ratio{window}"
