"""What several sections ask."""

from __future__ import annotations

from .. import variables as v

VERDICT = "run_family:whyidle_verdict:ratio${window}"
RANKS = f"{v.RUN_NODES}, {v.RANKS}"
"""The chosen ranks of the run: matchers of what is per rank."""

MOST_RANKS = f"scalar(max(max_over_time(run:whyidle_ranks:count{{{v.RUN}}}[${{__range}}] @ end())))"
"""As many ranks as the run had at once in the time range."""
