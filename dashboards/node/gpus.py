"""The GPUs of a node: the counters that show what its ranks do."""

from __future__ import annotations

from ..selection import SAMPLED, activity, grows, highest, rate, total
from ..vocabulary import Panel, Section, line, query, steps, trend
from ..vocabulary import section as _section

NO_GPU = "No GPU on this node"
RANK = "owner, run, rank"
LEFT_OUT = 'reason!~"sync_boost"'
"""Leaves out this reason for lower clocks: it is a setting of a group of GPUs and not a fault."""


def section() -> Section:
    return _section(
        "GPUs",
        line(8, _active(), _busy(), _idle_compute()),
        line(8, _held_down(), _without_hooks()),
    )


def _active() -> Panel:
    return trend(
        "Activity of all GPUs",
        "Share of time in which any kernel ran (busy), share of the SMs that had work, of their warp slots in "
        "use, and of time in which the tensor cores worked. A GPU that spins in a collective is busy, but its "
        "tensor cores are not. All values except busy need Hopper or later.",
        query(activity("whyidle_gpu_busy_seconds_total", "instance"), "busy"),
        *(
            query(activity(metric, "instance", SAMPLED), words)
            for metric, words in {
                "whyidle_gpu_sm_active_seconds_total": "SMs",
                "whyidle_gpu_sm_occupancy_seconds_total": "warp slots",
                "whyidle_gpu_tensor_active_seconds_total": "tensor cores",
            }.items()
        ),
        unit="percentunit",
        width=8,
        most=1,
        nothing=NO_GPU,
    )


def _busy() -> Panel:
    return trend(
        "Busy, by GPU",
        "Share of time in which any kernel ran on each GPU, as the driver sees it. If one GPU is below the "
        "others, its rank waits when the others do not. If a GPU is low although its rank says compute, look at "
        "the launch gaps.",
        query(activity("whyidle_gpu_busy_seconds_total", "gpu"), "GPU {{gpu}}"),
        unit="percentunit",
        width=8,
        most=1,
        nothing=NO_GPU,
    )


def _idle_compute() -> Panel:
    return trend(
        "Launch gaps: compute in which no kernel ran",
        "Part of each rank's compute in which its GPU was idle: launch gaps, synchronisations, Python between kernels. "
        "From samples of the GPU's activity, about a minute late. A verdict counts it as host.",
        grows("whyidle_compute_idle_seconds_total", RANK, "{{owner}}/{{run}} rank {{rank}}", most=8),
        unit="percentunit",
        width=8,
        nothing="No rank here has a GPU whose activity is sampled",
    )


def _held_down() -> Panel:
    by = "gpu, reason"
    held = total(by, rate("whyidle_gpu_throttled_seconds_total", LEFT_OUT))
    return trend(
        "Clocks held down",
        "Share of time in which a GPU ran with lowered clocks, by reason; reasons overlap. A throttled GPU makes "
        "its rank late in compute, so the rank shows as a straggler. The twelve highest.",
        query(highest(held, by, 12, above="0.001"), "GPU {{gpu}} {{reason}}"),
        unit="percentunit",
        thresholds=steps(0.1),
        dashed=True,
        nothing="No GPU here had its clocks held down",
    )


def _without_hooks() -> Panel:
    return trend(
        "GPUs without whyidle",
        "GPUs that no live rank uses, on average: busy and idle under a process without whyidle, or empty, with no "
        "process at all.",
        grows("whyidle_device_seconds_total", "cause", "{{cause}}", 'cause=~"unhooked_busy|unhooked_idle|empty"'),
        unit="count:GPUs",
        nothing="Every GPU here has a rank with whyidle",
    )
