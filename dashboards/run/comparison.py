"""Compares the run with another run, or with itself at an earlier time."""

from __future__ import annotations

from .. import variables as v
from ..colours import BLUE, CAUSE_SHADES, GREY
from ..library import core
from ..vocabulary import Column, Panel, Section, Template, line, now, query, section, table, trend, words

THEN = " offset $ago"
OTHER = f"{v.OWNER}, {v.only('run', 'other')}"
AGO = ("0s", "1h", "1d", "1w", "4w")
BY_CAUSE = f"{v.CLUSTER_LABEL}, cause"


def with_run() -> Template:
    """A variable for another run of the same owner. Empty means the run itself."""
    return core.Template(name="other", label="Compare with run (empty: itself)", type="textbox", query="", default="")


def ago() -> Template:
    return v.choice("ago", "… ago", AGO, "1w")


def comparison() -> Section:
    return section(
        "Compared with another run, or with itself some time ago", line(9, _causes(), _steps()), collapsed=True
    )


def _either(other: str, itself: str) -> str:
    """The series of the other run, or of the run itself if no other run is chosen."""
    return f"({other} or on () {itself})"


def _causes() -> Panel:
    metric = "run_cause:whyidle_share:ratio${window}"
    mean = f"sum by ({BY_CAUSE}) (avg_over_time({metric}{{%s}}[${{__range}}]%s))"
    mine = mean % (v.RUN, "")
    then = _either(mean % (OTHER, THEN), mean % (v.RUN, THEN))
    return table(
        "Causes, now and before",
        """Shares of all ranks' time in the time range, by cause: this run's, those of the run to compare with that is
        chosen above (itself, if none is) at the chosen time before, and the difference.""",
        now(mine),
        now(then),
        now(f"{mine} - {then}"),
        columns=[
            Column("cause", "Cause", mappings=words({name: (name, shade) for name, shade in CAUSE_SHADES.items()})),
            Column("A", "This run", unit="percentunit", decimals=1, width=100),
            Column("B", "The other, then", unit="percentunit", decimals=1, width=140),
            Column("C", "Difference", unit="percentunit", decimals=1, width=110),
        ],
        sort="Difference",
        width=12,
        nothing="Nothing is known of either",
    )


def _steps() -> Panel:
    metric = "run:whyidle_step_seconds:p50_5m"
    return trend(
        "Step time, now and before",
        """The median step of this run, and that of the run to compare with (itself, if none is chosen) at the chosen
        time before, drawn on the same time axis.""",
        query(f"{metric}{{{v.RUN}}}", "this run"),
        query(_either(f"{metric}{{{OTHER}}}{THEN}", f"{metric}{{{v.RUN}}}{THEN}"), "then"),
        unit="s",
        colours={"this run": BLUE, "then": GREY},
        dotted=["then"],
    )
