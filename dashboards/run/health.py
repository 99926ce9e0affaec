"""Whether whyidle itself sees everything of the run."""

from __future__ import annotations

from .. import variables as v
from ..colours import FAINT, GREEN, ORANGE, RED
from ..vocabulary import Column, Panel, Section, line, now, query, table, trend, words
from ..vocabulary import section as _section

STATES = {"active": ("active", GREEN), "absent": ("absent", FAINT), "failed": ("failed", RED)}


def section() -> Section:
    return _section("whyidle in this run", line(8, _hooks(), _faults()), collapsed=True)


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
        width=12,
    )


def _faults() -> Panel:
    return trend(
        "Faults of whyidle's own",
        """Exceptions that the hooks swallowed, and intervals that the device clock could not measure, per second of
        all ranks. Both should be 0; the training is not affected by either.""",
        query(f"sum(rate(whyidle_hook_faults_total{{{v.RUN}}}[$__rate_interval]))", "exceptions"),
        query(f"sum(rate(whyidle_unmeasured_total{{{v.RUN}}}[$__rate_interval]))", "intervals not measured"),
        unit="ops",
        width=12,
        colours={"exceptions": RED, "intervals not measured": ORANGE},
    )
