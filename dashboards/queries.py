"""Queries, and what is said in them more than once."""

from __future__ import annotations

from collections.abc import Sequence

from ..ledger.causes import FAMILIES
from .library import Target, core
from .variables import BY_RUN, SETTINGS

ORDER = "_order"
"""A label that comes before all others, for who sorts series by their labels."""


def query(expr: str, legend: str = "") -> Target:
    """A query over the time range; ``legend`` may name labels: ``{{node}}``."""
    return core.Target(expr=one_line(expr), legendFormat=legend or "__auto")


def now(expr: str, legend: str = "") -> Target:
    """A query at the end of the time range."""
    return core.Target(expr=one_line(expr), legendFormat=legend or "__auto", instant=True)


def encode(metric: str, matchers: str, label: str, values: Sequence[str], by: str) -> str:
    """One number per series of ``by``: the index in ``values`` of the value that ``label`` has.

    Where a series of ``by`` has several of the values at once, the last of them counts.
    """
    parts = (f'0 * {metric}{{{matchers}, {label}="{value}"}} + {index}' for index, value in enumerate(values))
    return f"max by ({by}) ({' or '.join(parts)})"


def confirmed(matchers: str) -> str:
    """To what degree counters confirm the verdict of each run."""
    degree, verdict = (f"run_family:whyidle_{what}:ratio${{window}}{{{matchers}}}" for what in ("confirmed", "verdict"))
    return f"sum by ({BY_RUN}) ({degree} and on ({BY_RUN}, family) {verdict})"


def in_order(expr: str) -> str:
    """The series of ``expr``, which have the label family, in the one order of families: compute first.

    Grafana stacks series in the order in which they come, and Prometheus sorts those of a range by their labels.
    Causes follow one another within their family.
    """
    for index, family in enumerate(FAMILIES):
        expr = f'label_replace({expr}, "{ORDER}", "{index}", "family", "{family}")'
    return expr


def blamed(matchers: str, families: str = "", by: str = "") -> str:
    """Shares by family over several runs, each as heavy as it has live ranks, waits for late ranks looked through.

    ``families`` are further matchers of what is wanted, and ``by`` further labels to tell apart.
    """
    ranks = f"on ({BY_RUN}) group_left () run:whyidle_ranks:count{{{matchers}}}"
    charged = f"run_family:whyidle_charged:ratio${{window}}{{{matchers}%s}} * {ranks}"
    wanted, whole = charged % (f", {families}" if families else ""), charged % ""
    labels = f"{by}, family" if by else "family"
    return f"sum by ({labels}) ({wanted}) / on ({by}) group_left () sum by ({by}) ({whole})"


def worst(selector: str, score: str, by: str, count: str = "$worst") -> str:
    """The series of ``selector`` of those ``by`` whose ``score`` over the time range is highest.

    The score is taken at the end of the range, so that the same series stand in the picture from its start.
    """
    return f"{selector} and on ({by}) topk({count}, {score})"


def rank_shares(matchers: str, by: str, families: str) -> str:
    """Shares of the time of ranks within the chosen window, by ``by`` and family; phases that are open count already.

    ``families`` is a matcher of what is wanted. These are not recorded: of thousands of ranks, few are looked at.
    """
    spent = f"rank_cause:whyidle_device_seconds:increase{{{matchers}%s}}"
    seconds = f"({of_window(spent)} or rank_phase:whyidle_open:seconds{{{matchers}%s}})"
    wanted, whole = (seconds % (which, which, which) for which in (f", {families}", ""))
    return f"sum by ({by}, family) ({wanted}) / on ({by}) group_left () sum by ({by}) ({whole})"


def of_window(increases: str) -> str:
    """What books of ranks say of the chosen window; of their last reading, where that is longer ago than the window."""
    return f"(sum_over_time({increases}[${{window}}]) or last_over_time({increases}[{SETTINGS.details_interval}]))"


def rank_idle(matchers: str, by: str) -> str:
    """How much of the time range ranks did not compute, to tell the worst."""
    spent = f'rank_cause:whyidle_device_seconds:increase{{{matchers}, family!="compute"}}'
    return f"sum by ({by}) ({over_range(spent, 'sum')})"


def over_range(selector: str, function: str = "avg") -> str:
    """``avg``, ``max``, ``sum``... over the time range of what was recorded, looked at once per point of the panel.

    As of the end of the range: the same at every moment of a trend. Looks that are as far apart as the range is long
    keep a query of thirty days within the samples that Prometheus takes into memory.
    """
    return f"{function}_over_time(({selector})[${{__range}}:$__interval] @ end())"


def device_hours(increases: str) -> str:
    """The selector of recorded increases -> device-hours in the time range.

    The sum of the samples themselves: each is of the seconds since the one before it.
    """
    return f"sum_over_time({increases}[${{__range}}]) / 3600"


def one_line(expr: str) -> str:
    """Expressions may be written over several lines."""
    return " ".join(expr.split())
