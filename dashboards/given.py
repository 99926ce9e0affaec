"""What ranks were given and what they use: one table for the dashboards Run and Node."""

from __future__ import annotations

from .selection import listed
from .vocabulary import Column, Panel, steps, table

RANK = "owner, run, rank, node"
_FULL = steps(0.9, 0.98)


def panel(matchers: str, of_rank: str) -> Panel:
    """``matchers``: the labels of its series. ``of_rank``: those of counters, which have no node."""
    allowed = f"min by ({RANK}, by) (whyidle_rank_allowed_cpus{{{matchers}}})"
    used = f"max by (owner, run, rank) (rate(whyidle_rank_used_cpu_seconds_total{{{of_rank}}}[$__rate_interval]))"
    memory, limit = (
        f"max by ({RANK}, of) (whyidle_rank_memory_{what}_bytes{{{matchers}}})" for what in ("used", "limit")
    )
    return table(
        "CPUs and memory, given and used",
        """What each rank may use at the end of the time range, what sets the limit (affinity or quota), and what it
        uses. A rank whose CPUs are used up waits for itself: give it more. Ranks of a node may share CPUs and memory.
        The ranks whose memory is fullest.""",
        listed(f"{memory} / {limit}"),
        listed(f"max by (owner, run, rank) ({memory})"),
        listed(f"min by (owner, run, rank) ({limit})"),
        listed(f"min by (owner, run, rank) ({allowed})"),
        listed(used),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run"),
            Column("rank", "Rank", width=60),
            Column("node", "Node"),
            Column("D", "CPUs given", "short", width=90, decimals=1),
            Column("by", "Set by", width=80),
            Column("E", "CPUs used", "short", width=90, decimals=1),
            Column("B", "Memory used", "bytes", width=100),
            Column("C", "Memory limit", "bytes", width=100),
            Column("of", "Limit of", width=80),
            Column("A", "Memory", "percentunit", thresholds=_FULL, cell="color-background", decimals=0, width=80),
        ],
        sort="Memory",
        width=24,
        nothing="No live rank knows its CPUs and memory",
    )
