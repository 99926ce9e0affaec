"""Alerts on checkpoints that got slower, and on steps that were repeated since no checkpoint had them."""

from __future__ import annotations

from ...agent.metrics.ranks import RUN
from ..config import Config
from ..promql import seconds
from ..recording.names import share, spent
from ..recording.shares import within
from ..rule import Alert, Group, Record
from .expressions import RUN_NAME
from .mounts_links import mounts
from .pace import patient

SAVES = 'cause=~"checkpoint_write|checkpoint_cpu"'
SECONDS, COUNT = "run:whyidle_checkpoint_seconds:rate", "run:whyidle_checkpoints:rate"


def groups(config: Config) -> tuple[Group, ...]:
    return (patient(config, "checkpoints", (*_records(config), _slower(config), _recompute(config))),)


def _mean(config: Config) -> str:
    return f"run:whyidle_checkpoint_seconds:mean{config.long_window}"


def _records(config: Config) -> tuple[Record, ...]:
    """In three steps: a rate over hours of every rank would read millions of samples at each evaluation."""
    window, long = config.window, config.within(config.long_window)
    saving = within(config, f"{spent('run_cause')}{{{SAVES}}}", window)
    saved = config.rate("whyidle_run_checkpoints_total", window, 'kind="save"')
    return (
        Record(
            f"{SECONDS}{window}",
            f"sum {config.by(*RUN)} ({saving}) / {seconds(window)}",
            why="Rank-seconds in saves per second.",
        ),
        Record(f"{COUNT}{window}", f"sum {config.by(*RUN)} ({saved})", why="Saves per second, counted for each rank."),
        Record(
            _mean(config),
            f"avg_over_time({SECONDS}{window}[{long}])\n/ (avg_over_time({COUNT}{window}[{long}]) > 0)",
            why="Rank-seconds per save of one rank. Absent if nothing was saved.",
        ),
    )


def _slower(config: Config) -> Alert:
    of, mean, long = config.alerts, _mean(config), config.long_window
    before = f"avg_over_time({mean}[{of.checkpoint_reference}] offset {long})"
    return Alert(
        "WhyidleCheckpointSlower",
        f"{mean} > {of.checkpoint_slowdown} * {before}\nand {mean} > {of.checkpoint_seconds} + {before}",
        config.for_slow,
        "warning",
        f"Checkpoints of run {RUN_NAME} take {{{{ $value | humanizeDuration }}}}, longer than before.",
        f"In the last {long} a checkpoint of run {RUN_NAME} held up the rank that saved it for "
        f"{{{{ $value | humanizeDuration }}}}, more than {of.checkpoint_slowdown:g} times the mean over the "
        f"{of.checkpoint_reference} before. Staging and writing in the background do not count."
        + mounts(config, "checkpoint")
        + " Look at the storage that the run writes to.",
    )


def _recompute(config: Config) -> Alert:
    return Alert(
        "WhyidleRecompute",
        f'{share("run_family", config.long_window)}{{family="lost"}} > {config.alerts.recompute_share}',
        config.for_slow,
        "warning",
        f"Run {RUN_NAME} spent {{{{ $value | humanizePercentage }}}} of its time repeating steps, or suspended.",
        f"Over the last {config.long_window} {{{{ $value | humanizePercentage }}}} of the time of run "
        f"{RUN_NAME} went to steps that an earlier attempt had finished, but not saved in a checkpoint, or its ranks "
        "were suspended: stopped, frozen or paused. Save more often and find out why the run restarts, or who "
        "suspends it.",
    )
