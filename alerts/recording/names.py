"""The names of recorded series that rules, alerts and dashboards share: ``level:metric:operations``."""

from __future__ import annotations

OPEN = "rank_phase:whyidle_open:seconds"
MISSING = "run_rank_family:whyidle_missing:seconds"
INSTANCE_NODE = "instance_node:whyidle_node:group"
RUN_NODE_RANKS = "run_node:whyidle_ranks:count"
RUN_RANKS = "run:whyidle_ranks:count"
NODE_RANKS = "node:whyidle_ranks:count"

NODE_LINK = "node:whyidle_link_bytes:limit"
RUN_LINK = "run:whyidle_link_bytes:limit"


def steps(window: str) -> str:
    """Steps per second of a run."""
    return f"run:whyidle_steps:rate{window}"


def step_buckets(window: str) -> str:
    """The histogram of a run's step times."""
    return f"run:whyidle_step_seconds_bucket:rate{window}"


def step_seconds(quantile: str, window: str) -> str:
    """A quantile of step times; ``quantile`` such as p99."""
    return f"run:whyidle_step_seconds:{quantile}_{window}"


def bus_bandwidth(window: str) -> str:
    """Bytes per second and rank that the links of a run have to move at least."""
    return f"run:whyidle_collective_busbw_bytes:rate{window}"


def device_seconds(level: str, window: str) -> str:
    """Device-seconds per second; ``level`` such as rank_cause, run_family, node."""
    return f"{level}:whyidle_device_seconds:rate{window}"


def share(level: str, window: str) -> str:
    """Shares that sum to 1 over the families or causes of a level."""
    return f"{level}:whyidle_share:ratio{window}"


def goodput(level: str, window: str) -> str:
    return f"{level}:whyidle_goodput:ratio{window}"


def since_first_step(window: str) -> str:
    """Device-seconds per second of a run by family, from the first step on: what verdicts are about."""
    return f"run_family:whyidle_window_seconds:rate{window}"


def lateness(window: str) -> str:
    """By how much a rank was late, by what made it late."""
    return f"run_rank_family:whyidle_lateness_seconds:rate{window}"


def late(level: str, window: str) -> str:
    """GPU-seconds per second for which a rank made the others wait; level run_rank_family or run_rank."""
    return f"{level}:whyidle_late:rate{window}"


def waited_for(window: str) -> str:
    """Waits for late ranks and other pipeline stages, by the family that made those late, as far as it is known."""
    return f"run_family:whyidle_waited_for:rate{window}"


def late_steps(window: str) -> str:
    """Steps per second in which a rank was the last to arrive: evenly spread where ranks take turns."""
    return f"run_rank:whyidle_late_steps:rate{window}"


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


def confirmed(operation: str) -> str:
    """How much of a family's time was lost where and while counters agreed: ratioW, or rateW in seconds per second."""
    return f"run_family:whyidle_confirmed:{operation}"
