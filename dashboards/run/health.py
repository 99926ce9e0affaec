"""Whether whyidle itself works in the run: the states of hooks, and errors."""

from __future__ import annotations

from .. import given
from .. import variables as v
from ..colours import FAINT, GREEN, ORANGE, RED
from ..vocabulary import Column, Panel, Section, line, now, query, table, trend, words
from ..vocabulary import section as _section

STATES = {"active": ("active", GREEN), "absent": ("absent", FAINT), "failed": ("failed", RED)}


def section() -> Section:
    return _section(
        "What the ranks were given, and whyidle in this run",
        line(8, given.panel(v.RUN, v.RUN)),
        line(8, _hooks(), _faults()),
        collapsed=True,
    )


def _hooks() -> Panel:
    return table(
        "Hooks",
        """The hooks of whyidle, and on how many ranks each is in which state. Absent: the run does not use what the
        hook observes. Failed: the time that it would have seen counts for the phase around it, and the log of the
        rank says why.""",
        now(f"count by (hook, state) (whyidle_hook_state{{{v.RUN}}})"),
        columns=[
            Column("hook", "Hook"),
            Column("state", "State", mappings=words(STATES), cell="color-text"),
            Column("A", "Ranks", unit="short", decimals=0),
        ],
        sort="State",
        width=12,
    )


def _faults() -> Panel:
    return trend(
        "Errors in whyidle itself",
        """Errors that the hooks caught, and intervals that the device clock could not measure, per second over all
        ranks. Both should be 0. Neither affects the training.""",
        query(f"sum(rate(whyidle_hook_faults_total{{{v.RUN}}}[$__rate_interval]))", "exceptions"),
        query(f"sum(rate(whyidle_unmeasured_total{{{v.RUN}}}[$__rate_interval]))", "intervals not measured"),
        unit="ops",
        width=12,
        colours={"exceptions": RED, "intervals not measured": ORANGE},
    )
