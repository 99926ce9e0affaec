"""Restarts, the loop's own time, and whether whyidle itself sees everything."""

from __future__ import annotations

from .. import variables as v
from ..colours import FAINT, FAMILY_COLOUR, GREEN, ORANGE, RED
from ..vocabulary import Column, Panel, Section, line, now, query, steps, table, trend, words
from ..vocabulary import section as _section
from .parts import causes

STATES = {"active": ("active", GREEN), "absent": ("absent", FAINT), "failed": ("failed", RED)}


def section() -> Section:
    return _section(
        "Restarts, host and hooks",
        line(8, _live(), _repeated(), _host()),
        line(9, _hooks(), _unexplained(), _faults()),
    )


def _live() -> Panel:
    return trend(
        "Live ranks",
        "Ranks whose process lives, and those that have ended and are still shown. A drop is a crash or the end.",
        query(f"sum(whyidle_rank_up{{{v.RUN}}})", "live"),
        query(f"sum(1 - whyidle_rank_up{{{v.RUN}}})", "ended"),
        unit="short",
        width=8,
        colours={"live": GREEN, "ended": RED},
    )


def _repeated() -> Panel:
    return causes(
        "Lost to restarts",
        """Share of all ranks' time for steps that an earlier attempt had already finished, and for starting up.
        Checkpoint more often, or start faster.""",
        ("recompute", "startup"),
        width=8,
        nothing="No start and no restart in this time",
    )


def _host() -> Panel:
    return causes(
        "The loop's own time",
        """host: Python between phases. host_gc: garbage collection. host_compile: compilation. host_blocked: the loop's
        own code waits for something that no hook sees. All while the GPU had nothing to do, as far as could be
        measured.""",
        ("host", "host_gc", "host_compile", "host_blocked"),
        width=8,
    )


def _hooks() -> Panel:
    return table(
        "Hooks",
        """The hooks of whyidle, and on how many ranks each is in which state. Absent: the run does not use what it
        hooks. Failed: its time counts for whatever is around it, and a log line on the rank says why.""",
        now(f"count by (hook, state) (whyidle_hook_state{{{v.RUN}}})"),
        columns=[
            Column("hook", "Hook"),
            Column("state", "State", mappings=words(STATES), cell="color-text"),
            Column("A", "Ranks", unit="short", decimals=0),
        ],
        sort="State",
        width=8,
    )


def _unexplained() -> Panel:
    return trend(
        "Unexplained time",
        """Share of all ranks' time that no cause explains. Above one per cent the other shares deserve less trust.
        None is as it should be.""",
        query(f'run_cause:whyidle_share:ratio${{window}}{{{v.RUN}, cause="unattributed"}}', "unattributed"),
        unit="percentunit",
        width=8,
        thresholds=steps(0.01, 0.05),
        dashed=True,
        colours=FAMILY_COLOUR,
        nothing="Every second is explained",
    )


def _faults() -> Panel:
    return trend(
        "Faults of whyidle's own",
        """Exceptions that the hooks swallowed, and intervals that the device clock could not measure, per second of
        all ranks. Both should be 0; the training is not affected by either.""",
        query(f"sum(rate(whyidle_hook_faults_total{{{v.RUN}}}[$__rate_interval]))", "exceptions"),
        query(f"sum(rate(whyidle_unmeasured_total{{{v.RUN}}}[$__rate_interval]))", "intervals not measured"),
        unit="ops",
        width=8,
        colours={"exceptions": RED, "intervals not measured": ORANGE},
    )
