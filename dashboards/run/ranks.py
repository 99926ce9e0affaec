"""Ranks one by one: heat map, phases and a table."""

from __future__ import annotations

from ...alerts.recording.names import IDLE_BY_RANK, LATE_BY_RANK, MISSING, hourly, spent
from ...ledger.causes import PHASES
from .. import variables as v
from ..colours import FAMILY_COLOUR, FAMILY_WORDS, PHASE_COLOUR
from ..vocabulary import (
    GOOD,
    Column,
    Panel,
    Section,
    Template,
    encode,
    heat,
    largest,
    line,
    now,
    over_range,
    query,
    rank_shares,
    steps,
    table,
    timeline,
    to_node,
    words,
    worst,
)
from ..vocabulary import section as _section
from .parts import MOST_RANKS, RANKS

BY_RANK = "owner, run, rank"
NAMED = 8
"""The most ranks that are shown because others wait for them."""
SHOWN, LISTED = (f"{v.RUN_NODES}, {v.any_of('rank', which)}" for which in ("shown", "listed"))
"""The ranks that are drawn over time, and those in the table, from hidden variables. A query that chose its ranks
itself would have to read all ranks."""
LATENESS = over_range(f"run_rank:whyidle_late:rate5m{{{v.RUN}, {v.RANKS}}}")
LATE = f"{LATENESS} > {v.SETTINGS.late_share} * {MOST_RANKS}"
"""The ranks that are late. Without a limit, the latest rank would always be bright, even if it is hardly late."""


def section() -> Section:
    return _section("Which rank?", line(9, _idle(), _late()), line(9, _phases()), line(9, _list()))


def shown() -> Template:
    """A hidden variable: the chosen ranks that compute least, and those that they wait for (which compute).

    Before the first seconds of a run are recorded, any of its ranks.
    """
    idle, late = (f"{{{matchers}}}" for matchers in (RANKS, f"{v.RUN}, {v.RANKS}"))
    lost = f'{spent("rank_cause")}{{{RANKS}, family!="compute"}}'
    waits = largest("$worst", "rank", lost, hourly(IDLE_BY_RANK) + idle, f"0 * whyidle_rank_info{idle}")
    waited_for = largest(NAMED, "rank", LATE_BY_RANK + late, hourly(LATE_BY_RANK) + late)
    missing = f"topk({NAMED}, max by (rank) (max_over_time({MISSING}{late}[$__range])))"
    return v.worst("shown", "rank", f"{waits} or {waited_for} or {missing}", "Rank drawn")


def listed() -> Template:
    """A hidden variable: the chosen ranks that wait most now, and those that they wait for now."""
    waits = f"topk($worst, sum by (rank) ({_losses(RANKS)}))"
    late, missing = _now(f"{v.RUN}, {v.RANKS}")
    return v.worst("listed", "rank", f"{waits} or topk({NAMED}, {late}) or topk({NAMED}, {missing})", "Rank listed")


def _losses(ranks: str) -> str:
    return rank_shares(ranks, "rank", 'family!="compute"')


def _now(ranks: str) -> tuple[str, str]:
    """How many GPUs wait for each rank, and for how long ranks have been missing."""
    late = f"sum by (rank) (run_rank:whyidle_late:rate${{window}}{{{ranks}}})"
    return late, f"max by (rank) ({MISSING}{{{ranks}}})"


def _computing(ranks: str) -> str:
    return rank_shares(ranks, BY_RANK, 'family="compute"')


def _idle() -> Panel:
    return heat(
        "Who waits",
        """Share of each rank's time that was not compute. Bright means a large share. If all ranks but one are
        bright, that one makes the others wait. It shows the ranks that wait most, up to the number that is chosen
        above, at most eight ranks that others wait for, and at most eight that are missing from a collective.""",
        query(f"1 - {_computing(SHOWN)}", "rank {{rank}}"),
        unit="percentunit",
        width=12,
    )


def _late() -> Panel:
    late = f"run_rank:whyidle_late:rate${{window}}{{{v.RUN}, {v.RANKS}}}"
    return heat(
        "Ranks that others wait for",
        """How many GPUs each rank keeps waiting: GPU-seconds per second of the others. One bright row is a slow rank.
        Rows that take turns mean uneven batches. Ranks that make others wait for less than 1 % of the run are not
        shown.""",
        query(worst(late, LATE, BY_RANK), "rank {{rank}}"),
        unit="count:GPUs",
        width=12,
        most=None,
        nothing="Nobody makes the others wait",
    )


def _phases() -> Panel:
    phases = encode("whyidle_phase_open_seconds", SHOWN, "phase", PHASES, BY_RANK)
    return timeline(
        "What each rank was doing",
        """The phase of each rank at each scrape: a sample, not a sum. In a hang every rank stays in one colour. The
        rank with a different colour is the one that the others wait for.""",
        query(phases, "rank {{rank}}"),
        mappings=words({i: (phase, PHASE_COLOUR[phase]) for i, phase in enumerate(PHASES)}),
    )


def _list() -> Panel:
    ranks = f"{v.RUN}, {v.any_of('rank', 'listed')}"
    return table(
        "Ranks, now",
        f"""The ranks now: the phase of each and for how long, what it loses most to, in how many steps a second it
        was the last to arrive, and how many GPUs wait for it. Ranks that are last about equally often take turns, for
        example because of uneven batches. It shows the ranks that wait most, up to the number that is chosen above,
        at most {NAMED} ranks that others wait for, and at most {NAMED} that are missing from a collective. Sort by
        any column; a node's name leads to its counters.""",
        *(
            now(expr)
            for expr in (
                f"max by (rank, node, device, phase) (whyidle_phase_open_seconds{{{LISTED}}})",
                f"sum by (rank) ({_computing(LISTED)})",
                f"topk by (rank) (1, {_losses(LISTED)}) > {v.SETTINGS.verdict_share}",
                *_now(ranks),
                f"sum by (rank) (rate(whyidle_late_steps_total{{{ranks}}}[$__rate_interval]))",
            )
        ),
        columns=[
            Column("rank", "Rank", width=70),
            Column("node", "Node", link=to_node()),
            Column("device", "Device", width=80),
            Column("phase", "Phase", mappings=_phase_colours(), cell="color-background", width=110),
            Column("A", "In it for", unit="s", thresholds=steps(30, 300), cell="color-text", width=100),
            Column("B", "Compute", unit="percentunit", thresholds=GOOD, cell="gauge", most=1),
            Column("family", "Loses most to", mappings=_families(), cell="color-background", width=260),
            Column("C", "Share", unit="percentunit", decimals=0, width=80),
            Column("F", "Last to arrive", unit="ops", width=115),
            Column("D", "Keeps waiting", unit="count:GPUs", decimals=2, width=130),
            Column("E", "Missing for", unit="s", thresholds=steps(10, 300), cell="color-text", width=110),
        ],
        sort="Keeps waiting",
    )


def _phase_colours() -> list[dict[str, object]]:
    return words({phase: (phase, colour) for phase, colour in PHASE_COLOUR.items()})


def _families() -> list[dict[str, object]]:
    return words({family: (text, FAMILY_COLOUR[family]) for family, text in FAMILY_WORDS.items()})
