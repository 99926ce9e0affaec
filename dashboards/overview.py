"""The first screen: why are the GPUs idle? A verdict for every run, and what it cost."""

from __future__ import annotations

from ..alerts.config import DEFAULT
from ..ledger.causes import FAMILIES
from . import variables as v
from .colours import CONTRADICTION_WORDS, CORROBORATION_WORDS, FAMILY_COLOUR, FAMILY_WORDS, ORANGE, RED, SKY
from .marks import ALERTS, restarts
from .vocabulary import (
    GOOD,
    VERDICTS,
    Column,
    Dashboard,
    Panel,
    bars,
    blamed,
    confirmed,
    dashboard,
    device_hours,
    encode,
    line,
    now,
    over_range,
    query,
    section,
    series_to,
    share,
    stat,
    steps,
    table,
    timeline,
    to_run,
    trend,
    words,
)

BY_RUN = f"{v.CLUSTER_LABEL}, owner, run"
IDLE = 'family!="compute"'
LOST = f"run_family:whyidle_billed_seconds:increase{{{v.RUNS}, {IDLE}}}"
SEVERITIES = {"critical": ("critical", RED), "warning": ("warning", ORANGE), "info": ("info", SKY)}


def build() -> Dashboard:
    return dashboard(
        "whyidle-overview",
        "whyidle / Overview",
        """Why is my GPU idle? Where the time of every run goes, and what it costs. A run's name leads to its
        ranks.""",
        variables=[v.data_source(), v.cluster(), v.owners(), v.runs(), v.window()],
        annotations=[restarts(v.RUNS), ALERTS],
        sections=[
            section(
                "Why are the GPUs idle?",
                line(8, _verdicts(), _lost_by_family()),
                line(4, _goodput(), _idle_devices(), _lost_hours(), _devices(), _hang(), _alert_count()),
                line(9, _shares(), _blamed()),
                line(7, _verdicts_over_time()),
            ),
            section("Which runs lose most?", line(9, _worst_runs()), line(8, _goodput_by_run(), _lost_by_run())),
            section("Alerts", line(8, _alerts())),
        ],
    )


def _verdicts() -> Panel:
    against = f"sum by ({BY_RUN}, contradiction) (run_family:whyidle_contradicted:ratio5m{{{v.RUNS}}})"
    return table(
        "Verdict",
        """What each live run loses most to, if that takes a tenth of its time, else compute. Waits for a late rank
        count for what made it late, and the rank that is late by it most stands at the end, unless ranks take turns.
        The share is of all its ranks' time, as averaged above. Confirmed is the part of it that was lost where counters
        agree; "but" is what a counter says against it.""",
        now(f"run_family:whyidle_verdict:ratio${{window}}{{{v.RUNS}}}"),
        now(f"run:whyidle_goodput:ratio${{window}}{{{v.RUNS}}}"),
        now(f"run:whyidle_ranks:count{{{v.RUNS}}}"),
        now(f"sum by ({BY_RUN}, rank) (run_rank_family:whyidle_culprit:rate${{window}}{{{v.RUNS}}})"),
        now(confirmed(v.RUNS)),
        now(f"topk by ({BY_RUN}) (1, {against})"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("family", "Loses most to", mappings=VERDICTS, cell="color-background", width=270),
            Column("A", "Share", unit="percentunit", decimals=0, width=70),
            Column("corroboration", "Evidence", mappings=words(CORROBORATION_WORDS), cell="color-text", width=140),
            Column("E", "Confirmed", unit="percentunit", decimals=0, width=90),
            Column("contradiction", "But", mappings=words(CONTRADICTION_WORDS), width=140),
            Column("B", "Goodput", unit="percentunit", decimals=0, thresholds=GOOD, cell="color-text", width=80),
            Column("C", "Ranks", unit="short", decimals=0, width=70),
            Column("rank", "Late rank", width=80),
        ],
        sort="Goodput",
        rising=True,
        width=16,
        nothing="No run has a live rank",
    )


def _lost_by_family() -> Panel:
    return bars(
        "GPU-hours lost, by what took them",
        """Device-hours in the time range that were no compute. Waits for a late rank are charged to what made it late,
        as in the verdict. A phase that is still open is billed when it ends.""",
        now(f"sort_desc(sum by (family) ({device_hours(LOST)}) > 0)", "{{family}}"),
        unit="count:GPU-h",
        colours=FAMILY_COLOUR,
        nothing="nothing lost",
    )


def _goodput() -> Panel:
    return stat(
        "Goodput",
        """Share of the chosen runs' device time that was compute for new steps. Steps that are repeated after a
        restart do not count.""",
        now(_ratio('family="compute"')),
        unit="percentunit",
        thresholds=GOOD,
        decimals=0,
    )


def _idle_devices() -> Panel:
    return stat(
        "GPUs' worth of loss",
        "Device-seconds per second that are no compute: how many GPUs the chosen runs pay for and get nothing from.",
        query(f"sum(run_family:whyidle_device_seconds:rate${{window}}{{{v.RUNS}, {IDLE}}}) or vector(0)"),
        unit="short",
        decimals=1,
        graph=True,
    )


def _lost_hours() -> Panel:
    return stat(
        "GPU-hours lost",
        "Device-hours in the time range that were no compute, of the chosen runs, those that ended in it included.",
        now(f"sum({device_hours(LOST)})"),
        unit="count:GPU-h",
    )


def _devices() -> Panel:
    return stat(
        "Ranks that train",
        "Live ranks of the chosen runs; each has one device.",
        query(f"sum(run:whyidle_ranks:count{{{v.RUNS}}}) or vector(0)"),
        unit="short",
        decimals=0,
        graph=True,
    )


def _hang() -> Panel:
    return stat(
        "Longest hang",
        """For how long live ranks have been waiting in a collective that another has not entered. Seconds are a late
        rank; minutes are a hang, and the run's page names the rank.""",
        now(f"max(run_rank_family:whyidle_missing:seconds{{{v.RUNS}}})"),
        unit="s",
        thresholds=steps(10, DEFAULT.alerts.hang_seconds),
        decimals=0,
        nothing="none",
    )


def _alert_count() -> Panel:
    return stat(
        "Alerts that fire",
        "Alerts of whyidle that fire now, in the chosen clusters; they are listed at the end of this page.",
        query(f'count(ALERTS{{alertstate="firing", alertname=~"Whyidle.+", {v.CLUSTER}}}) or vector(0)'),
        unit="short",
        thresholds=steps(1),
        decimals=0,
    )


def _shares() -> Panel:
    return share(
        "Where the time goes",
        """Shares of the chosen runs' device time by family, as measured; they sum to 100 %. Green is compute. What
        grows beside it is what to look at: click it for the run.""",
        query(
            f"sum by (family) (run_family:whyidle_device_seconds:rate${{window}}{{{v.RUNS}}}) / on () group_left () "
            f"sum(run_family:whyidle_device_seconds:rate${{window}}{{{v.RUNS}}})",
            "{{family}}",
        ),
        width=12,
    )


def _blamed() -> Panel:
    return share(
        "What is to blame",
        """The same, with the waits for late ranks charged to what made them late, and start-up left out: what verdicts
        are taken from. Straggler remains where a rank was late in compute itself. Runs weigh as much as they have
        ranks.""",
        query(blamed(v.RUNS), "{{family}}"),
        width=12,
    )


def _verdicts_over_time() -> Panel:
    states = encode("run_family:whyidle_verdict:ratio${window}", v.RUNS, "family", FAMILIES, BY_RUN)
    return timeline(
        "Verdict over time",
        """The verdict of each run at each moment, those that have ended included. A run that changes colour has met
        something: the marks above it are restarts and alerts.""",
        query(states, "{{owner}}/{{run}}"),
        mappings=words({i: (FAMILY_WORDS[family], FAMILY_COLOUR[family]) for i, family in enumerate(FAMILIES)}),
        links=[series_to("run")],
    )


def _worst_runs() -> Panel:
    bill = f"run_family:whyidle_billed_seconds:increase{{{v.RUNS}}}"
    stood = f"sum by ({BY_RUN}, family) (run_family:whyidle_verdict:ratio5m{{{v.RUNS}}})"
    lost, all_hours = (f"sum by ({BY_RUN}) ({device_hours(one)})" for one in (LOST, bill))
    return table(
        "Worst runs",
        """Runs of the time range by the device-hours that they lost in it, those that have ended included, with the
        verdict that stood for most of the time.""",
        now(lost),
        now(f"1 - {lost} / {all_hours}"),
        now(all_hours),
        now(f"topk by ({BY_RUN}) (1, {over_range(stood, 'count')})"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("A", "GPU-hours lost", unit="count:GPU-h", cell="gauge"),
            Column("B", "Compute", unit="percentunit", decimals=0, thresholds=GOOD, cell="color-text", width=110),
            Column("C", "GPU-hours", unit="count:GPU-h", width=160),
            Column("family", "Lost most to", mappings=VERDICTS, cell="color-background", width=300),
        ],
        sort="GPU-hours lost",
    )


def _goodput_by_run() -> Panel:
    return trend(
        "Goodput by run",
        "Share of each run's device time that was compute for new steps. A step down is a change worth finding.",
        query(f"run:whyidle_goodput:ratio${{window}}{{{v.RUNS}}}", "{{owner}}/{{run}}"),
        unit="percentunit",
        most=1,
        thresholds=GOOD,
        dashed=True,
        links=[series_to("run")],
    )


def _lost_by_run() -> Panel:
    return trend(
        "GPUs' worth of loss by run",
        "Device-seconds per second of each run that are no compute. The highest costs most, however good its goodput.",
        query(
            f"sum by ({BY_RUN}) (run_family:whyidle_device_seconds:rate${{window}}{{{v.RUNS}, {IDLE}}})",
            "{{owner}}/{{run}}",
        ),
        unit="short",
        links=[series_to("run")],
    )


def _alerts() -> Panel:
    return table(
        "Firing alerts",
        "Alerts of whyidle that fire now, with what they are about. The runbook says what to look at and what to do.",
        now(f'ALERTS{{alertstate="firing", alertname=~"Whyidle.+", {v.CLUSTER}}}'),
        columns=[
            Column("alertname", "Alert"),
            Column("severity", "Severity", mappings=words(SEVERITIES), cell="color-text", width=100),
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("node", "Node"),
            Column("rank", "Rank", width=80),
        ],
        nothing="No alert fires",
    )


def _ratio(matchers: str) -> str:
    rate = "run_family:whyidle_device_seconds:rate${window}"
    return f"sum({rate}{{{v.RUNS}, {matchers}}}) / sum({rate}{{{v.RUNS}}})"
