"""Data and checkpoints: what data workers do, and how long saves take."""

from __future__ import annotations

from .. import variables as v
from ..colours import BLUE, CAUSE_SHADES, ORANGE, YELLOW
from ..vocabulary import Panel, Section, line, over_range, query, section, trend, worst

MOUNT = "{{mount}} ({{fstype}})"
WORKERS = f'{v.RUN}, {v.RANKS}, role="worker"'


def loading() -> Section:
    return section(
        "Data and checkpoints", line(8, _blocked(), _rates()), line(8, _workers(), _read(), _seconds_per_save())
    )


def _blocked() -> Panel:
    blocked = f"run_mount:whyidle_mount_blocked:rate5m{{{v.RUN}}}"
    return trend(
        "Blocked on files, by mount",
        """How many ranks are blocked at each mount on average, they or their workers, and what they do: read data for
        the loop, save or restore a checkpoint, or run code of the loop in no phase that whyidle knows. The eight mounts
        with most. “Rate of mounts” says whether a mount is at its limit. Averaged over five minutes.""",
        query(
            worst(blocked, over_range(blocked), "owner, run, mount, fstype, activity", "8"), MOUNT + ": {{activity}}"
        ),
        unit="count:GPUs",
        nothing="No rank was blocked on files",
    )


def _rates() -> Panel:
    moved, limit = (f"run_mount:whyidle_mount_bytes:{what}{{{v.RUN}}}" for what in ("rate5m", "limit"))
    by = "owner, run, mount, fstype"
    return trend(
        "Rate of mounts while ranks are blocked",
        """What each mount delivers or takes while a rank is blocked there, the mean over the nodes, and the limit where
        one is known. “By mount” counts all of a node's traffic on the mount. “By processes” counts what the processes
        of one rank move, so it is that rank's part, and an upper bound. At its limit, more workers gain nothing. The
        Node dashboard shows the counters of NFS, Lustre and disks.""",
        query(worst(moved, over_range(moved), f"{by}, counted_by", "8"), MOUNT + " by {{counted_by}}"),
        query(worst(limit, over_range(limit), f"{by}, limit_by", "4"), "limit of " + MOUNT + " ({{limit_by}})"),
        unit="Bps",
        dotted=["/^limit of /"],
        nothing="No rank was blocked on files",
    )


def _workers() -> Panel:
    cpu = f"rate(whyidle_process_cpu_seconds_total{{{WORKERS}}}[$__rate_interval])"
    queue = f"rate(whyidle_process_runqueue_seconds_total{{{WORKERS}}}[$__rate_interval])"
    blocked = f"rate(whyidle_process_blocked_seconds_total{{{WORKERS}}}[$__rate_interval])"
    colours = {
        "on a CPU": YELLOW,
        "ready, without a CPU": CAUSE_SHADES["data_queue"],
        "blocked, or without work": ORANGE,
    }
    return trend(
        "What the data workers do",
        """Seconds per second of all workers, whether the loop waits for them or not. If all are on a CPU, add workers
        or decode less. If they are ready without a CPU, there are more workers than CPUs.""",
        query(f"sum({cpu})", "on a CPU"),
        query(f"sum({queue})", "ready, without a CPU"),
        query(f"sum({blocked})", "blocked, or without work"),
        unit="short",
        colours=colours,
        stacked=True,
        width=8,
        nothing="The run has no worker processes",
    )


def _read() -> Panel:
    matchers = f"{v.RUN}, {v.RANKS}"
    return trend(
        "Bytes read",
        """Read calls of the ranks and their workers, and the bytes that storage had to fetch for them. If there are
        read calls and storage fetches nothing, the data came from the page cache, or from a FUSE or object store,
        whose reads count as calls only.""",
        query(f"sum(rate(whyidle_process_syscall_read_bytes_total{{{matchers}}}[$__rate_interval]))", "read calls"),
        query(f"sum(rate(whyidle_process_storage_read_bytes_total{{{matchers}}}[$__rate_interval]))", "from storage"),
        unit="Bps",
        width=8,
        colours={"read calls": BLUE, "from storage": ORANGE},
    )


def _seconds_per_save() -> Panel:
    spent, saves = (
        f'sum by (owner, run) (increase({name}{{{v.RUN}, rank="0", {what}}}[${{window}}]))'
        for name, what in (
            ("whyidle_device_seconds_total", 'cause=~"checkpoint_write|checkpoint_cpu"'),
            ("whyidle_checkpoints_total", 'kind="save"'),
        )
    )
    return trend(
        "Seconds per save",
        """For how long a save blocked rank 0, averaged over the chosen time. Multiply by the saves per hour to get
        the cost of checkpoints.""",
        query(f"{spent} / ({saves} > 0)", "{{owner}}/{{run}}"),
        unit="s",
        width=8,
        nothing="No save within that time",
    )
