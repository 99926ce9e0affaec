"""Runs that lose their GPUs' time: to which family, and those that stand still."""

from __future__ import annotations

from typing import NamedTuple

from ...agent.metrics.ranks import RUN
from ..config import Config
from ..recording.names import charged, culprit, device_seconds, goodput, share, verdict
from ..rule import Alert, Group
from .expressions import RUN_NAME, alive, each
from .pace import patient, prompt

CORROBORATED = (
    '{{ if eq .Labels.corroboration "confirmed" }} Counters of its nodes agree.'
    '{{ else if eq .Labels.corroboration "unconfirmed" }} No counter of its nodes confirms it.{{ end }}'
)


class Loss(NamedTuple):
    """One family of causes that an alert watches."""

    name: str
    family: str
    threshold: float
    what: str
    look: str


def losses(config: Config) -> tuple[Loss, ...]:
    of = config.alerts
    return (
        Loss(
            "WhyidleLostToStorage",
            "storage",
            of.storage_share,
            "storage",
            "its ranks, or ranks that they wait for, are blocked in reads of data or in checkpoints",
        ),
        Loss(
            "WhyidleLostToNetwork",
            "network",
            of.network_share,
            "the network",
            "its ranks wait for transfers that every rank has entered",
        ),
        Loss(
            "WhyidleLostToCpu",
            "cpu",
            of.cpu_share,
            "CPUs",
            "its ranks, or ranks that they wait for, want batches from workers that compute or get no CPU",
        ),
        Loss(
            "WhyidleLostToHost",
            "host",
            of.host_share,
            "the training loop's own Python",
            "its ranks, or ranks that they wait for, run Python, collect garbage or compile between phases",
        ),
        Loss(
            "WhyidleLostToStraggler",
            "straggler",
            of.straggler_share,
            "ranks that compute for longer than the others",
            "the others wait for them in collectives",
        ),
        Loss(
            "WhyidleLostToPipeline",
            "pipeline",
            of.pipeline_share,
            "waits between pipeline stages",
            "its ranks wait for sends or receives of other stages: the bubble of the schedule, or a slow stage",
        ),
        Loss(
            "WhyidleLostToCommunication",
            "communication",
            of.communication_share,
            "waits in collectives that could not be split",
            "nobody knows whether the transfer or a late rank took the time; attach whyidle on all ranks of the run",
        ),
    )


def groups(config: Config) -> tuple[Group, ...]:
    lost = (_lost(config, loss) for loss in losses(config))
    return (
        prompt(config, "idle", (*lost, *_others(config))),
        # It is about an hour, and looks at every rank to know since when the run has made steps.
        patient(config, "idle", (_goodput(config),)),
    )


def _lost(config: Config, loss: Loss) -> Alert:
    own = f'{charged(config.window)}{{family="{loss.family}"}}'
    worst = f'max {config.by(*RUN)} ({charged(config.window)}{{family!="compute"}})'
    found = f'{verdict(config.window)}{{family="{loss.family}"}}'
    blamed = f'{culprit(config.window)}{{family="{loss.family}"}}'
    return Alert(
        loss.name,
        f"{own} >= {loss.threshold}\nand {config.on(*RUN)}\n"
        f"{own} >= {config.on(*RUN)} {config.alerts.main_share} * {worst}",
        config.for_slow,
        "warning",
        f"Run {RUN_NAME} loses {{{{ $value | humanizePercentage }}}} of its time to {loss.what}.",
        f"In the last {config.window} {{{{ $value | humanizePercentage }}}} of the time of all ranks of run "
        f"{RUN_NAME} went to {loss.what}: {loss.look}."
        + each(config, found, RUN, CORROBORATED)
        + each(config, blamed, RUN, " Rank {{ .Labels.rank }} is late by it most.")
        + " Waits for late ranks are charged to what made them late.",
        keep_firing_for=config.keep_firing,
    )


def _others(config: Config) -> tuple[Alert, ...]:
    of = config.alerts
    shares = share("run_family", config.window)
    computes = f'{shares}{{family="compute"}} < {of.idle_compute_share}'
    steps = config.series("whyidle_steps_total")
    live = f"and {config.on(*RUN)} {alive(config, *RUN)}"
    return (
        _unattributed(config),
        Alert(
            "WhyidleRunIdle",
            f"{computes}\n{live}\nand {config.on(*RUN)} sum {config.by(*RUN)} ({steps}) > 0",
            config.for_slow,
            "critical",
            f"Run {RUN_NAME} holds its GPUs and does not compute.",
            f"Of the last {config.window} run {RUN_NAME} computed for {{{{ $value | humanizePercentage "
            "}}, although its processes live and it has made steps before. Its mean over the day hides this.",
        ),
        Alert(
            "WhyidleStartupSlow",
            f"{computes}\n{live}\nand {config.on(*RUN)} sum {config.by(*RUN)} ({steps}) == 0",
            of.startup_for,
            "warning",
            f"Run {RUN_NAME} has not made its first step.",
            f"Run {RUN_NAME} has been up for {of.startup_for} without a step, and computed for "
            f"{{{{ $value | humanizePercentage }}}} of the last {config.window}.",
        ),
    )


def _goodput(config: Config) -> Alert:
    of, long = config.alerts, config.long_window
    return Alert(
        "WhyidleGoodputLow",
        f"{goodput('run', long)} < {of.goodput}\nand {config.on(*RUN)} {alive(config, *RUN)}\n"
        f"and {config.on(*RUN)} sum {config.by(*RUN)} ({config.series('whyidle_steps_total')} offset {long}) > 0",
        config.for_slow,
        "info",
        f"Run {RUN_NAME} computes for {{{{ $value | humanizePercentage }}}} of its time.",
        f"Over the last {long} {{{{ $value | humanizePercentage }}}} of the time of run "
        f"{RUN_NAME} was compute. The rest may be spread over several families, or come in bursts, as "
        "checkpoints do, so that none of their own alerts fires.",
    )


def _unattributed(config: Config) -> Alert:
    """From the counters alone: an open wait for data is in the recorded share, and is told apart when it ends."""
    unexplained = config.rate("whyidle_device_seconds_total", config.window, 'cause="unattributed"')
    whole = device_seconds("run", config.window)
    return Alert(
        "WhyidleUnattributed",
        f"sum {config.by(*RUN)} ({unexplained})\n/ {config.on(*RUN)} {whole}\n> {config.alerts.unattributed_share}",
        config.for_slow,
        "warning",
        f"Nothing explains {{{{ $value | humanizePercentage }}}} of the time of run {RUN_NAME}.",
        f"In the last {config.window} whyidle could not say where {{{{ $value | humanizePercentage }}}} of the "
        f"time of run {RUN_NAME} went. The other shares are right, and the rest is missing from them.",
    )
