"""Queries that several sections of the dashboard Run share."""

from __future__ import annotations

from .. import variables as v

VERDICT = "run_family:whyidle_verdict:ratio${window}"
RANKS = f"{v.RUN_NODES}, {v.RANKS}"
"""Matchers for series by rank: the chosen ranks of the run."""

MOST_RANKS = f"scalar(max(max_over_time(run:whyidle_ranks:count{{{v.RUN}}}[${{__range}}] @ end())))"
"""The highest number of ranks that the run had at the same time in the time range."""
