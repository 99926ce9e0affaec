"""Alerts about whyidle itself: agents, collectors and hooks that do not work."""

from __future__ import annotations

from dataclasses import replace

from ...agent.metrics.ranks import RANK, RUN
from ..config import Config
from ..rule import Alert, Group, Record
from .expressions import COUNT, NODE, RATE, RUN_NAME, TARGET, named, started
from .pace import patient, prompt

HAD_RANKS = "instance:whyidle_rank_up:max"
HARMLESS = "died_mid_write|duplicate|torn"
"""Reasons of ledger errors that lose no data: the rank was killed, it was started twice, or a later read succeeded."""


def groups(config: Config) -> tuple[Group, ...]:
    return (
        prompt(config, "agent", (_had_ranks(config), *_agents(config))),
        patient(config, "agent", (*_reading(config), *_hooks(config))),
    )


def _had_ranks(config: Config) -> Record:
    live = config.series("whyidle_run_ranks")
    return Record(
        HAD_RANKS,
        f"clamp_max(max {config.by(*TARGET)} ({live}), 1)",
        why="1 if the agent reported live ranks in its last scrape.",
    )


def _agents(config: Config) -> tuple[Alert, ...]:
    up = f'up{{job=~"{config.alerts.agent_job}"}}'
    ranks = f"last_over_time({HAD_RANKS}[{config.long_window}]) == 1"
    down = Alert(
        "WhyidleAgentDown",
        f"{up} == 0\nand {config.on(*TARGET)} {ranks}",
        config.for_soon,
        "warning",
        "The agent at {{ $labels.instance }} does not answer.",
        f"Prometheus has not been able to scrape {{{{ $labels.instance }}}} for {config.for_soon}. Until it "
        "answers again, nothing is known about the ranks, GPUs and links of its node.",
    )
    return (
        down,
        # Mostly a node that is drained and rebooted. A node that had ranks counts here too after long_window.
        replace(down, expr=f"{up} == 0\nunless {config.on(*TARGET)} {ranks}", severity="info"),
        Alert(
            "WhyidleAgentAbsent",
            f"absent({up} == 1)",
            config.for_slow,
            "warning",
            "No agent answers.",
            f"Prometheus has no agent that it can scrape under a job that matches `{config.alerts.agent_job}`. No "
            "other alert of whyidle can fire.",
        ),
        Alert(
            "WhyidleWatchdog",
            "vector(1)",
            "0s",
            "info",
            "The alerts of whyidle work.",
            "This alert always fires. If it stops, Prometheus does not evaluate the rules, or no notifications "
            "are sent. Route it to a receiver that reports when it is missing.",
        ),
    )


def _reading(config: Config) -> tuple[Alert, ...]:
    of = config.alerts
    by = config.by(*TARGET, "collector")
    errors = config.series("whyidle_read_errors_total")
    rate, yesterday = f"sum {by} (rate({errors}[15m]))", f"sum {by} (rate({errors}[15m] offset 1d))"
    return (
        Alert(
            "WhyidleCollectorDown",
            named(config, f"{config.series('whyidle_collector_up')} == 0"),
            config.for_slow,
            "warning",
            f"The collector {{{{ $labels.collector }}}} of {NODE} does not answer.",
            "The collector {{ $labels.collector }} of the agent at {{ $labels.instance }} hangs or fails. Its series "
            "are absent; the other collectors go on.",
        ),
        Alert(
            "WhyidleReadErrors",
            named(
                config,
                f"{rate}\n- ({yesterday} or 0 * {rate})\n> {of.read_errors_per_second}\n"
                f"and {config.on(*TARGET)} {config.series('whyidle_build_info')} offset 1d",
            ),
            config.for_slow,
            "info",
            f"The collector {{{{ $labels.collector }}}} of {NODE} cannot read values that it could read a day ago.",
            "The collector {{ $labels.collector }} of the agent at {{ $labels.instance }} cannot read "
            f"values: {RATE} a second more than a day ago. The series of these values are absent. Run whyidle "
            "doctor on the node.",
        ),
        Alert(
            "WhyidleLedgerErrors",
            named(
                config,
                started(
                    config,
                    "whyidle_ledger_errors_total",
                    f'reason!~"{HARMLESS}"',
                    config.long_window,
                    *TARGET,
                    "reason",
                ),
            ),
            "0s",
            "warning",
            f"Ledgers on {NODE} cannot be used: {{{{ $labels.reason }}}}.",
            f"The agent at {{{{ $labels.instance }}}} could not use some ledgers within {config.long_window}, for the "
            f"reason {{{{ $labels.reason }}}}: {COUNT}. The figures do not include the ranks that wrote them.",
        ),
    )


def _hooks(config: Config) -> tuple[Alert, ...]:
    failed = config.series("whyidle_hook_state", 'state="failed"')
    ended = config.series("whyidle_rank_killed")
    return (
        Alert(
            "WhyidleHookFailed",
            f"count {config.by(*RUN, 'hook')} (\n  {failed} unless {config.on(*TARGET, *RANK)} {ended}\n)",
            config.for_soon,
            "warning",
            f"The hook {{{{ $labels.hook }}}} failed in run {RUN_NAME}.",
            f"The hook {{{{ $labels.hook }}}} is switched off on {{{{ $value }}}} ranks of run {RUN_NAME}. Training is "
            "not affected; what the hook sees is missing from the causes.",
        ),
        Alert(
            "WhyidleHookFaults",
            started(config, "whyidle_run_hook_faults_total", "", config.long_window, *RUN),
            "0s",
            "info",
            f"The hooks in run {RUN_NAME} caught errors in whyidle.",
            f"Errors in whyidle itself that were caught in the ranks of run {RUN_NAME} within "
            f"{config.long_window}: {COUNT}. Training is not affected; some intervals may be missing.",
        ),
    )
