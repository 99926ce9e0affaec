"""Data and checkpoints: reading, decoding, queueing, handing over; saving and restoring."""

from __future__ import annotations

from .. import variables as v
from ..colours import BLUE, CAUSE_SHADES, GREY, ORANGE, YELLOW
from ..vocabulary import Panel, Section, line, query, section, trend
from .parts import causes

WORKERS = f'{v.RUN}, {v.RANKS}, role="worker"'


def loading() -> Section:
    return section("Data", line(8, _waits(), _workers()), line(8, _read(), _faults(), _threads()))


def checkpoints() -> Section:
    return section("Checkpoints", line(8, _saving(), _seconds_per_save(), _saved()))


def _waits() -> Panel:
    return causes(
        "Waits for data",
        """data_read: the worker that owes the batch is blocked, so storage. data_cpu: it decodes. data_queue: it gets
        no CPU. data_handoff: the batch exists and has not reached the loop. Shares of all ranks' time.""",
        ("data_read", "data_cpu", "data_queue", "data_handoff"),
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
        """Seconds per second of all workers, whether the loop waits for them or not. All on a CPU: add workers, or
        decode less. Ready without a CPU: there are more workers than CPUs.""",
        query(f"sum({cpu})", "on a CPU"),
        query(f"sum({queue})", "ready, without a CPU"),
        query(f"sum({blocked})", "blocked, or without work"),
        unit="short",
        colours=colours,
        stacked=True,
        nothing="The run has no worker processes",
    )


def _read() -> Panel:
    matchers = f"{v.RUN}, {v.RANKS}"
    return trend(
        "Bytes read",
        """Read calls of the ranks and their workers, and what storage had to fetch for them. The first without the
        second: the page cache serves, or a FUSE or object store, whose reads count in the first alone.""",
        query(f"sum(rate(whyidle_process_syscall_read_bytes_total{{{matchers}}}[$__rate_interval]))", "read calls"),
        query(f"sum(rate(whyidle_process_storage_read_bytes_total{{{matchers}}}[$__rate_interval]))", "from storage"),
        unit="Bps",
        width=8,
        colours={"read calls": BLUE, "from storage": ORANGE},
    )


def _faults() -> Panel:
    matchers = f"{v.RUN}, {v.RANKS}"
    stuck = f"sum(rate(whyidle_process_uninterruptible_samples_total{{{matchers}}}[$__rate_interval]))"
    looks = f"sum(rate(whyidle_process_state_samples_total{{{matchers}}}[$__rate_interval]))"
    return trend(
        "Found in an uninterruptible wait",
        """Share of the looks at ranks and workers that found them in state D, mostly a read or a write. It grows with
        slow storage, over a network too.""",
        query(f"{stuck} / {looks}", "in state D"),
        unit="percentunit",
        width=8,
        most=1,
        colours={"in state D": ORANGE},
    )


def _threads() -> Panel:
    matchers = f"{v.RUN}, {v.RANKS}"
    return trend(
        "Workers and threads",
        "Processes and threads of all ranks. Many more threads than CPUs make them wait for one another.",
        query(f"sum(whyidle_process_workers{{{matchers}}})", "workers"),
        query(f"sum(whyidle_process_threads{{{matchers}}})", "threads"),
        unit="short",
        width=8,
        colours={"workers": BLUE, "threads": GREY},
    )


def _saving() -> Panel:
    return causes(
        "Waits for checkpoints",
        """Time in which the loop was blocked in a save (write), serialised or copied in one (cpu), or restored
        (read). What a save does behind the loop is not in it. Shares of all ranks' time.""",
        ("checkpoint_write", "checkpoint_cpu", "checkpoint_read"),
        width=8,
    )


def _seconds_per_save() -> Panel:
    spent = (
        f"sum by (owner, run) (sum_over_time(rank_cause:whyidle_device_seconds:increase"
        f'{{{v.RUN}, rank="0", cause=~"checkpoint_write|checkpoint_cpu"}}[${{window}}]))'
    )
    saves = f'sum by (owner, run) (increase(whyidle_checkpoints_total{{{v.RUN}, rank="0", kind="save"}}[${{window}}]))'
    return trend(
        "Seconds per save",
        """For how long a save held up rank 0, over the chosen average. Times the saves per hour, it is what
        checkpoints cost.""",
        query(f"{spent} / ({saves} > 0)", "{{owner}}/{{run}}"),
        unit="s",
        width=8,
        nothing="No save within that time",
    )


def _saved() -> Panel:
    return trend(
        "Checkpoint bytes",
        """Bytes per second that all ranks saved or loaded. Long waits with few bytes: storage is slow to open or to
        sync.""",
        query(
            f"sum by (kind) (rate(whyidle_checkpoint_bytes_total{{{v.RUN}}}[$__rate_interval]))",
            "{{kind}}",
        ),
        unit="Bps",
        width=8,
        colours={"save": ORANGE, "load": BLUE},
    )
