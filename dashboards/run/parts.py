"""What several sections draw."""

from __future__ import annotations

from collections.abc import Sequence

from .. import variables as v
from ..colours import CAUSE_SHADES
from ..vocabulary import Panel, in_order, query, trend

RANKS = f"{v.RUN_NODES}, {v.RANKS}"
"""The chosen ranks of the run: matchers of what is per rank."""

MOST_RANKS = f"scalar(max(max_over_time(run:whyidle_ranks:count{{{v.RUN}}}[${{__range}}] @ end())))"
"""As many ranks as the run had at once in the time range."""


def causes(title: str, description: str, which: Sequence[str], width: int = 12, nothing: str = "") -> Panel:
    """Some causes, as shares of the run's time, one on top of the other."""
    shares = f'run_cause:whyidle_share:ratio${{window}}{{{v.RUN}, cause=~"{"|".join(which)}"}}'
    return trend(
        title,
        description,
        query(in_order(shares), "{{cause}}"),
        unit="percentunit",
        width=width,
        colours={cause: CAUSE_SHADES[cause] for cause in which},
        stacked=True,
        nothing=nothing,
    )
