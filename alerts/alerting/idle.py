"""Alerts on runs that lose GPU time, by family, and on runs that make no progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ...agent.metrics.ranks import RANK, RUN
from ...verdict.shortage import SHORTAGES
from ..config import Config
from ..promql import seconds
from ..recording.contradictions import CONTRADICTIONS
from ..recording.names import (
    OPEN,
    UNUSED,
    charged,
    confirmed,
    contradicted,
    culprit,
    device_seconds,
    goodput,
    share,
    shortage,
    spent,
    step_seconds,
    steps,
    too_short,
)
from ..recording.shares import within
from ..rule import Alert, Group, Record
from .expressions import HERE, RUN_NAME, TARGET, each
from .mounts_links import links, mounts
from .pace import patient, prompt

FAMILY = (*RUN, "family")
STEPS, ALIVE = "run:whyidle_steps:total", "run:whyidle_rank_up:max"
REASON = " {{ .Value | humanizePercentage }} of it may have this reason: "
_OWN = '{phase=~"host|interactive"}'
CONFIRMED = " Counters of its nodes confirm {{ .Value | humanizePercentage }} of it."


class Loss(NamedTuple):
    """One family of causes, the share from which on it is an alert, and the words for it."""

    family: str
    threshold: float
    what: str
    look: str


def losses(config: Config) -> tuple[Loss, ...]:
    of = config.alerts
    return (
        Loss(
            "storage",
            of.storage_share,
            "storage",
            "its ranks, or ranks that they wait for, are blocked in reads of data or in checkpoints",
        ),
        Loss("network", of.network_share, "the network", "its ranks wait for transfers that every rank has entered"),
        Loss(
            "cpu",
            of.cpu_share,
            "CPUs",
            "its ranks, or ranks that they wait for, wait for batches from workers that compute or get no CPU",
        ),
        Loss(
            "host",
            of.host_share,
            "the training loop's own Python",
            "its ranks, or ranks that they wait for, run Python, collect garbage or compile between phases",
        ),
        Loss(
            "straggler",
            of.straggler_share,
            "ranks that compute for longer than the others",
            "the others wait for them in collectives",
        ),
        Loss(
            "pipeline",
            of.pipeline_share,
            "waits between pipeline stages",
            "its ranks wait for sends or receives of other stages: the bubble of the schedule, or a slow stage",
        ),
        Loss(
            "communication",
            of.communication_share,
            "waits in collectives that could not be split",
            "either the transfer or a late rank took the time; attach whyidle on all ranks of the run",
        ),
    )


def groups(config: Config) -> tuple[Group, ...]:
    return (
        prompt(config, "idle", (*_records(config), _lost(config), *_others(config))),
        patient(config, "idle", (_goodput(config), _slower(config))),  # both look at long_window
    )


def _records(config: Config) -> tuple[Record, ...]:
    """Queries over all ranks that several alerts share."""
    made, live = config.series("whyidle_run_steps_total"), config.series("whyidle_run_ranks")
    return (
        Record(STEPS, f"sum {config.by(*RUN)} ({made})", why="Steps of all ranks, including earlier attempts."),
        Record(ALIVE, f"clamp_max(max {config.by(*RUN)} ({live}), 1)", why="1 while a rank is alive."),
    )


def _lost(config: Config) -> Alert:
    window, long, rows = config.window, config.long_window, losses(config)
    what = _by("family", {row.family: row.what for row in rows})
    look = _by("family", {row.family: row.look for row in rows})
    lately = _beyond(rows, lambda family: f'max_over_time({charged(window)}{{family="{family}"}}[{config.for_slow}])')
    bursts = f"{_high(config, rows, long)}\nand {config.on(*RUN, 'family')} ({lately})\n{_stepping(config)}"
    rank = (*RUN, "rank")
    where = {
        "storage": mounts(config, "data|checkpoint"),
        "network": links(config),
        "host": mounts(config, "own_code") + _slow_cpus(config),
    }
    node = each(config, config.series("whyidle_rank_info"), rank, " on {{ .Labels.node }}", of=".Labels")
    return Alert(
        "WhyidleLostTo",
        f"({_high(config, rows, window)}\nor\n{bursts})\nunless {config.on(*RUN)} ({_alone(config)})\n"
        f"unless {config.on(*RUN, 'family')} ({_alone_lately(config)})\n"
        f"unless {config.on(*RUN)} {too_short(window)}\n{_using_gpus(config)}",
        config.for_slow,
        "warning",
        f"Run {RUN_NAME} loses {{{{ $value | humanizePercentage }}}} of its time to {{{{ $labels.family }}}}.",
        f"In the last {window}, or the last {long} if it comes in bursts, {{{{ $value | humanizePercentage }}}} of the "
        f"time of all ranks of run {RUN_NAME} went to {what}: {look}."
        + _idle_gpus(config)
        + _by("family", where)
        + each(config, confirmed(f"ratio{window}"), FAMILY, CONFIRMED)
        + each(config, contradicted(window), FAMILY, " But " + _by("contradiction", CONTRADICTIONS, ".Labels") + ".")
        + each(config, shortage(window), FAMILY, REASON + _by("shortage", SHORTAGES, ".Labels") + ".")
        + each(config, culprit(window), FAMILY, f" This made rank {{{{ .Labels.rank }}}}{node} late most often.")
        + " Waits for a late rank count under what made that rank late.",
        keep_firing_for=config.keep_firing,
    )


def _slow_cpus(config: Config) -> str:
    """A template: the nodes of the run whose CPUs are held below their frequency. Their loops launch work late."""
    limited = f"{config.series('whyidle_cpu_frequency_limit_ratio')} < {config.alerts.frequency_share}"
    return each(
        config,
        f"{limited} and {config.on(*TARGET)} {config.series('whyidle_rank_info', HERE)}",
        RUN,
        " CPUs at {{ .Labels.instance }} may reach {{ .Value | humanizePercentage }} of their frequency (governor "
        "{{ .Labels.governor }}).",
    )


def _by(label: str, texts: Mapping[str, str], of: str = "$labels") -> str:
    """A template that chooses a text by the value of a label. ``of`` is `.Labels` for a result within a query."""
    cases = (f'if eq {of}.{label} "{value}" }}}}{text}' for value, text in texts.items())
    return "{{ " + "{{ else ".join(cases) + "{{ end }}"


def _beyond(rows: Iterable[Loss], share_of: Callable[[str], str]) -> str:
    """The shares of the families that are above their thresholds."""
    return "\nor ".join(f"{share_of(row.family)} >= {row.threshold}" for row in rows)


def _high(config: Config, rows: Iterable[Loss], window: str) -> str:
    """Families with a high share in a window. Those that matter little beside another family are left out.

    A family matters if its share is at least config.alerts.main_share of the share of the worst family.
    """
    much = _beyond(rows, lambda family: f'{charged(window)}{{family="{family}"}}')
    worst = f'max {config.by(*RUN)} ({charged(window)}{{family!="compute"}})'
    return f"(({much})\n>= {config.on(*RUN)} group_left {config.alerts.main_share} * {worst})"


def _idle_gpus(config: Config) -> str:
    """A template: how many idle GPUs the alert's share amounts to, and what an hour of them costs."""
    wanted = (config.cluster_label, *RUN)
    here = ",".join(f"{label}=%q" for label in wanted)
    values = " ".join(f"$labels.{label}" for label in wanted)
    gpus = f"%f * {device_seconds('run', config.window)}{{{here}}}"
    money = f"{gpus} * {config.gpu_hour_price:g} > 0"
    return (
        f'{{{{ range printf `{gpus}` $value {values} | query }}}} That is {{{{ .Value | printf "%.1f" }}}} idle GPUs'
        f"{{{{ range printf `{money}` $value {values} | query }}}}, or {config.currency}"
        '{{ .Value | printf "%.2f" }} an hour{{ end }}.{{ end }}'
    )


def _stepping(config: Config) -> str:
    """Limits an alert to runs that made steps before long_window began. The mean of a younger run says little."""
    return f"and {config.on(*RUN)} {STEPS} offset {config.long_window} > 0"


def _using_gpus(config: Config) -> str:
    """Leaves out runs most of whose ranks train on the CPU beside their GPUs: WhyidleGpuUnused says so."""
    return f"unless {config.on(*RUN)} {UNUSED} >= 0.5"


def _others(config: Config) -> tuple[Alert, ...]:
    of = config.alerts
    shares = share("run_family", config.window)
    computes = f'sum without (family) ({shares}{{family="compute"}}) < {of.idle_compute_share}'
    live = f"and {config.on(*RUN)} {ALIVE} == 1"
    starting = share("run_cause", config.window) + '{cause="startup"}'
    started = f"unless {config.on(*RUN)} max_over_time({starting}[{of.startup_for}]) > {of.starting_share}"
    stepping = f"unless {config.on(*RUN)} {steps(config.window)} > 0"
    return (
        _unattributed(config),
        Alert(
            "WhyidleRunIdle",
            f"{computes}\n{live}\nand {config.on(*RUN)} {STEPS} > 0\n{stepping}\n{started}\n"
            f"unless {config.on(*RUN)} ({_alone(config)})",
            config.for_slow,
            "critical",
            f"Run {RUN_NAME} does not compute, but keeps its GPUs.",
            f"Run {RUN_NAME} computed for {{{{ $value | humanizePercentage }}}} of the last {config.window} and made "
            "no step, although its processes are alive, it made steps earlier, and it did not start recently. Take a "
            "stack of rank 0 with py-spy. An average over the day does not show this.",
        ),
        Alert(
            "WhyidleStartupSlow",
            f"{computes}\n{live}\n"
            f"and {config.on(*RUN)} ({STEPS} == 0 or sum without (cause, family) ({starting}) > {of.starting_share})",
            of.startup_for,
            "warning",
            f"Run {RUN_NAME} has not made its first step.",
            f"Run {RUN_NAME} has been up for {of.startup_for}, or has been starting again for that long, without "
            "a step. It "
            f"computed for {{{{ $value | humanizePercentage }}}} of the last {config.window}.",
        ),
    )


def _alone(config: Config) -> str:
    """Runs of one process that have waited for their user for long, or been in their own Python: mostly a notebook or
    a debugger."""
    return _notebooks(config, f"{OPEN}{_OWN}")


def _alone_lately(config: Config) -> str:
    """The runs of `_alone`, and those that were in it within the last hour: a notebook computes only now and then."""
    return _notebooks(config, f"max_over_time({OPEN}{_OWN}[{config.long_window}])")


def _notebooks(config: Config, own: str) -> str:
    lone = config.series("whyidle_rank_info", 'world_size="1"')
    return f"{own} > {config.alerts.notebook_seconds:g} and {config.on(*RANK)} {lone}"


def _goodput(config: Config) -> Alert:
    of, long = config.alerts, config.long_window
    return Alert(
        "WhyidleGoodputLow",
        f"{goodput('run', long)} < {of.goodput}\nand {config.on(*RUN)} {ALIVE} == 1\n{_stepping(config)}\n"
        f"{_using_gpus(config)}",
        config.for_slow,
        "info",
        f"Run {RUN_NAME} computes for {{{{ $value | humanizePercentage }}}} of its time.",
        f"Over the last {long} {{{{ $value | humanizePercentage }}}} of the time of run "
        f"{RUN_NAME} was compute or rollouts for new steps. The rest may be spread over several families, so that no "
        "alert on a single family fires.",
    )


def _slower(config: Config) -> Alert:
    """Compares medians, because a stall or a checkpoint does not change a median."""
    of, long = config.alerts, config.long_window
    median = step_seconds("p50", config.window)
    before = f"avg_over_time({median}[{of.step_reference}] offset {long})"
    return Alert(
        "WhyidleStepsSlower",
        f"avg_over_time({median}[{config.within(long)}]) > {of.step_slowdown} * {before}\n{_stepping(config)}",
        config.for_slow,
        "warning",
        f"Steps of run {RUN_NAME} take {{{{ $value | humanizeDuration }}}}, longer than before.",
        f"Over the last {long} the median step of run {RUN_NAME} took {{{{ $value | humanizeDuration }}}}, more than "
        f"{of.step_slowdown:g} times the median over the {of.step_reference} before.",
    )


def _unattributed(config: Config) -> Alert:
    """Uses counters of ended phases only: an open wait for data counts as unattributed until it ends and is split."""
    unexplained = within(config, f'{spent("run_cause")}{{cause="unattributed"}}', config.window)
    whole = device_seconds("run", config.window)
    return Alert(
        "WhyidleUnattributed",
        f"sum {config.by(*RUN)} ({unexplained}) / {seconds(config.window)}\n/ {config.on(*RUN)} {whole}\n"
        f"> {config.alerts.unattributed_share}\nunless {config.on(*RUN)} {too_short(config.window)}",
        config.for_slow,
        "warning",
        f"Nothing explains {{{{ $value | humanizePercentage }}}} of the time of run {RUN_NAME}.",
        f"In the last {config.window} whyidle could not say where {{{{ $value | humanizePercentage }}}} of the "
        f"time of run {RUN_NAME} went. The shares of the families are too small by the same amount. Look "
        "for hooks that failed in the run.",
    )
