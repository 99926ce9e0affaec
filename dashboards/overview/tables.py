"""The tables of the overview: runs by their loss, the bill, verdicts over time, and alerts."""

from __future__ import annotations

from ...alerts.promql import relabel
from ...alerts.recording.names import RANK_PLACE, RUN_GPUS
from .. import variables as v
from ..colours import (
    CONTRADICTION_WORDS,
    ORANGE,
    RED,
    SHORTAGE_LABELS,
    VERDICT_COLOUR,
    VERDICT_WORDS,
    VERDICTS,
)
from ..vocabulary import (
    FAMILY,
    MONEY,
    Column,
    Link,
    Panel,
    confirmed,
    encode,
    now,
    over_range,
    query,
    series_to,
    table,
    timeline,
    to_node,
    to_run,
    words,
)
from .parts import IDLE, LOST_NOW, lost_hours

BY_RANK = f"{v.BY_RUN}, rank"
LOST_BY_RUN = f"sum by ({v.BY_RUN}) ({LOST_NOW})"
LEADING = f"run_family:whyidle_leading:ratio5m{{{v.RUNS}}}"
SHOWN = 15
"""The most runs, owners or alerts in a table: those with the highest loss."""
LOOKS = 200
"""The number of points of the time range at which scores are computed for each run."""
RUNBOOK = Link("What to do", f"{v.SETTINGS.runbook_url}#all-alerts")
SEVERITIES = words({3: ("critical", RED), 2: ("warning", ORANGE)})


def runs() -> Panel:
    panel = table(
        "Runs by idle GPUs",
        f"""The {SHOWN} live runs with the most idle GPUs: the family that takes most of the time, its largest cause,
        its share of the time since the first step, and the rank that this made late most often, unless ranks take
        turns. Waits for a late rank count under what made it late. Confirmed: the part that was lost on nodes
        whose counters agree. “But” names a counter that contradicts it, or a shortage of CPU time that may be the
        reason. Since: when that family became the largest, or the start of the time range if that is later.""",
        *(now(_worst(expr)) for expr in _of_runs()),
        columns=[
            Column("owner", "Owner", width=130),
            Column("run", "Run", link=to_run()),
            Column("A", "GPUs", unit="locale", decimals=0, width=65),
            Column("B", "Idle", unit="locale", decimals=1, width=75),
            Column("C", "Cost/h", unit=MONEY, width=80),
            Column("family", "Loses most to", mappings=FAMILY, cell="color-background", width=130),
            Column("D", "Share", unit="percentunit", decimals=0, width=70),
            Column("cause", "Largest cause", width=140),
            Column("H", "Confirmed", unit="percentunit", decimals=0, width=85),
            Column("contradiction", "But", mappings=words(CONTRADICTION_WORDS | SHORTAGE_LABELS), width=130),
            Column("rank", "Late rank", width=85),
            Column("node", "On node", link=to_node(), width=130),
            Column("G", "Since", unit="dateTimeFromNow", width=110),
        ],
        sort="Idle",
        nothing="No run has a live rank",
    )
    panel.maxDataPoints = LOOKS
    return panel


def _of_runs() -> tuple[str, ...]:
    """The queries of the columns, in the order of their letters."""
    verdict = f"run_family:whyidle_verdict:ratio${{window}}{{{v.RUNS}}}"
    leading = f"run_family:whyidle_leading:ratio${{window}}{{{v.RUNS}}}"
    against = f"sum by ({v.BY_RUN}, contradiction) (run_family:whyidle_contradicted:ratio5m{{{v.RUNS}}})"
    short = relabel(
        f"run_family:whyidle_shortage:ratio5m{{{v.RUNS}}}",
        "contradiction",
        "shortage",
        {each: each for each in SHORTAGE_LABELS},
    )
    short = f"sum by ({v.BY_RUN}, contradiction) ({short})"
    causes = f"run_cause:whyidle_share:ratio${{window}}{{{v.RUNS}}}"
    return (
        f"sum by ({v.BY_RUN}) ({RUN_GPUS}{{{v.RUNS}}})",
        LOST_BY_RUN,
        f"{v.SETTINGS.gpu_hour_price} * {LOST_BY_RUN} > 0",
        verdict,
        f"topk by ({v.BY_RUN}) (1, {causes} and on ({v.BY_RUN}, family) {leading})",
        _culprits(),
        f"1000 * {_since()}",
        confirmed(v.RUNS),
        f"topk by ({v.BY_RUN}) (1, {against}) or on ({v.BY_RUN}) topk by ({v.BY_RUN}) (1, {short})",
    )


def _worst(expr: str) -> str:
    return f"({expr}) and on ({v.BY_RUN}) topk({SHOWN}, {LOST_BY_RUN})"


def _culprits() -> str:
    """Culprits by rank and node. A rank that moved was on two nodes. The query takes one, so that the join works."""
    culprit = f"sum by ({BY_RANK}) (run_rank_family:whyidle_culprit:rate${{window}}{{{v.RUNS}}})"
    place = f"topk by ({BY_RANK}) (1, {RANK_PLACE}{{{v.RUNS}}} and on ({BY_RANK}) {culprit})"
    return f"{culprit} * on ({BY_RANK}) group_left (node) {place}"


def _since() -> str:
    """The time when the verdict was last a different one, or when the first verdict was recorded."""
    looks = "[${__range}:$__interval]"
    other = f"({LEADING} unless on ({v.BY_RUN}, family) {LEADING} @ end())"
    before = f"max by ({v.BY_RUN}) (max_over_time((0 * {other} + time()){looks}))"
    first = f"min by ({v.BY_RUN}) (min_over_time((0 * {LEADING} + time()){looks}))"
    return f"({before} or {first})"


def bills() -> tuple[Panel, Panel]:
    """The loss in the time range, by family and by owner."""
    return (
        _bill(
            "Lost, by family",
            """Device-hours in the time range that were not compute, and their cost at the price in the settings. Waits
            for a late rank count under what made it late. A phase that is still open is billed when it ends. “Unused”
            are GPUs that runs were given and that no rank used; “notebook waits”, those that a notebook held while it
            waited for its user.""",
            "family",
            Column("family", "Family", mappings=FAMILY, cell="color-text", width=110),
        ),
        _bill(
            "Lost, by owner",
            f"""GPU-hours lost by owner (namespace, Slurm account or user), for the {SHOWN} owners that lost most.""",
            "owner",
            Column("owner", "Owner", width=110),
        ),
    )


def _bill(title: str, description: str, label: str, column: Column) -> Panel:
    hours = f"topk({SHOWN}, {lost_hours(label)} > 0)"
    return table(
        title,
        description,
        now(hours),
        now(f"{v.SETTINGS.gpu_hour_price} * {hours} > 0"),
        columns=[
            column,
            Column("A", "GPU-h", unit="short", width=80),
            Column("B", "Cost", unit=MONEY, decimals=2, width=67),
        ],
        sort="GPU-h",
        width=5,
        nothing="Nothing lost",
    )


def verdicts() -> Panel:
    states = encode("run_family:whyidle_verdict:ratio${window}", v.RUNS, "family", VERDICTS, v.BY_RUN)
    score = over_range(f"sum by ({v.BY_RUN}) (run_family:whyidle_device_seconds:rate5m{{{v.RUNS}, {IDLE}}})")
    panel = timeline(
        "Verdicts over time",
        f"""What each run loses most to at each moment, for the {SHOWN} runs that lost most in the time range,
        including runs that have ended. The colours are those of the bill beside it. When a run changes colour, look
        for a mark at that time: a start, a restart, a checkpoint, a drained node or a new version.""",
        query(f"{states} and on ({v.BY_RUN}) topk({SHOWN}, {score})", "{{owner}}/{{run}}"),
        mappings=words({i: (VERDICT_WORDS[one], VERDICT_COLOUR[one]) for i, one in enumerate(VERDICTS)}),
        width=7,
        links=[series_to("run")],
        legend=False,
    )
    return panel


def firing() -> Panel:
    alerts = f'ALERTS{{alertstate="firing", alertname=~"Whyidle.+", {v.OWNERS}, severity="%s"}}'
    ranked = f"3 * {alerts % 'critical'} or 2 * {alerts % 'warning'}"
    return table(
        "Firing alerts",
        f"""At most {SHOWN} alerts that fire now, critical ones first, with the run or node that they are about. An
        alert's name leads to the runbook. Those of severity info are left out.""",
        now(f'label_replace(topk({SHOWN}, {ranked}), "alert", "$1", "alertname", "Whyidle(.+)")'),
        columns=[
            Column("Value", "Severity", unit="none", mappings=SEVERITIES, cell="color-text", width=67),
            Column("alert", "Alert", link=RUNBOOK, width=135),
            Column("run", "Run", link=to_run(), width=103),
            Column("node", "Node", link=to_node(), width=80),
        ],
        sort="Severity",
        width=7,
        nothing="No alert fires",
    )
