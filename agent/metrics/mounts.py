"""The metrics of the mounts at which the ranks of a run were blocked: sums over the ranks on one node."""

from __future__ import annotations

from .metric import Metric
from .ranks import NS
from .runs import RUN_PLACE

MOUNT = (*RUN_PLACE, "mount", "fstype")
_WHICH = (
    "The label mount is the mount point as the ranks see it, or the address of an object store, with fstype=tcp. After "
    "16 mounts of a run on a node, the others are summed under other."
)
_COUNTED_BY = (("mount",), ("processes",))

MOUNT_SUMS: tuple[Metric, ...] = (
    Metric(
        "whyidle_run_mount_blocked_seconds_total",
        "counter",
        "seconds",
        (*MOUNT, "activity"),
        "Seconds that the ranks of a run on this node lost while they or their workers were blocked at one mount, by "
        "what they did: data (waits for batches), checkpoint (saves and restores), or own_code (code in no phase that "
        f"a hook sees). From looks, four times a second at first and every two to four seconds later. {_WHICH}",
        "<blocked at mounts>",
        (("data",), ("checkpoint",), ("own_code",)),
        sparse=True,
        per=NS,
    ),
    Metric(
        "whyidle_run_mount_bytes_total",
        "counter",
        "bytes",
        (*MOUNT, "counted_by"),
        "Bytes that were moved while looks found a rank of the run blocked at the mount. Divided by "
        "whyidle_run_mount_measured_seconds_total, they are the rate that the mount achieves. If counted_by is mount, "
        "the mount's own counters give it, so it is the rate of the whole node. If counted_by is processes, it is the "
        "rate of the processes of one rank, and an upper bound.",
        "<bytes of mounts>",
        _COUNTED_BY,
        sparse=True,
    ),
    Metric(
        "whyidle_run_mount_measured_seconds_total",
        "counter",
        "seconds",
        (*MOUNT, "counted_by"),
        "The seconds in which whyidle_run_mount_bytes_total was measured, summed over the ranks of the run on this "
        "node.",
        "<measured at mounts>",
        _COUNTED_BY,
        sparse=True,
        per=NS,
    ),
)
"""In the order of mounts_links.of_mount."""
MOUNT_LIMIT = Metric(
    "whyidle_run_mount_limit_bytes_per_second",
    "gauge",
    "bytes_per_second",
    (*MOUNT, "limit_by"),
    "The rate that is possible at a mount for the live ranks of a run on this node, and why: io.max or blkio.throttle "
    "of a control group. The lowest of all ranks. Absent if no limit is known.",
    "<limits of mounts>",
)
METRICS: tuple[Metric, ...] = (*MOUNT_SUMS, MOUNT_LIMIT)
