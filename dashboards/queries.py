"""Queries, and expressions that several queries share."""

from __future__ import annotations

from collections.abc import Sequence

from ..alerts.promql import labelled
from ..alerts.recording.names import NOTEBOOKS, ON_CPUS, UNUSED_GPUS
from ..ledger.causes import FAMILIES
from ..verdict.unused import HEADLINE
from .library import Target, core
from .variables import BY_RUN, EXACT_SECONDS, SETTINGS

ORDER = "_order"
"""A label whose name sorts before all others: Prometheus sorts series by their labels."""


def query(expr: str, legend: str = "") -> Target:
    """A query over the time range. ``legend`` may contain labels: ``{{node}}``."""
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
    """The degree to which counters confirm the verdict of each run, from 0 to 1."""
    degree, verdict = (f"run_family:whyidle_{what}:ratio${{window}}{{{matchers}}}" for what in ("confirmed", "verdict"))
    return f"sum by ({BY_RUN}) ({degree} and on ({BY_RUN}, family) {verdict})"


def in_order(expr: str) -> str:
    """The series of ``expr`` in the common order of families: compute first. They must have the label `family`.

    Grafana stacks series in the order in which they arrive, and Prometheus sorts the series of a range query by their
    labels. The causes of a family stay together.
    """
    for index, family in enumerate((*FAMILIES, NOTEBOOKS)):
        expr = f'label_replace({expr}, "{ORDER}", "{index}", "family", "{family}")'
    return expr


def blamed(matchers: str, families: str = "", by: str = "") -> str:
    """Shares by family over several runs, with look-through. The weight of a run is its number of live ranks.

    ``families`` is a matcher that selects families, and ``by`` adds labels to group by.
    """
    ranks = f"on ({BY_RUN}) group_left () run:whyidle_ranks:count{{{matchers}}}"
    charged = f"run_family:whyidle_charged:ratio${{window}}{{{matchers}%s}} * {ranks}"
    wanted, whole = charged % (f", {families}" if families else ""), charged % ""
    labels = f"{by}, family" if by else "family"
    return f"sum by ({labels}) ({wanted}) / on ({by}) group_left () sum by ({by}) ({whole})"


def worst(selector: str, score: str, by: str, count: str = "$worst") -> str:
    """The series of ``selector`` with the highest ``score``. The labels ``by`` join the two.

    The score must be the same at all points of the range (see :func:`over_range`), so that the same series are shown
    from start to end.
    """
    return f"{selector} and on ({by}) topk({count}, {score})"


def rank_shares(matchers: str, by: str, families: str) -> str:
    """Shares of ranks' time in the chosen window, by the labels ``by`` and family. Open phases are included.

    ``families`` is a matcher that selects families. These shares are not recorded: there are thousands of ranks, and
    people look at few of them.
    """

    def seconds(labels: str, which: str) -> str:
        spent = of_window(f"rank_cause:whyidle_device_seconds:increase{{{matchers}{which}}}", labels)
        return f"sum by ({labels}) ({spent} or rank_phase:whyidle_open:seconds{{{matchers}{which}}})"

    return f"{seconds(f'{by}, family', f', {families}')} / on ({by}) group_left () {seconds(by, '')}"


def of_window(increases: str, labels: str) -> str:
    """The sums of recorded increases in the chosen window by ``labels``, or of the last ones if the window has none.

    Sums are joined instead of their parts, because there are ten times as many parts.
    """
    sums = (f"sum_over_time({increases}[${{window}}])", f"last_over_time({increases}[{SETTINGS.ranks_interval}])")
    return " or ".join(f"sum by ({labels}) ({each})" for each in sums)


def rank_idle(matchers: str, by: str) -> str:
    """The time in the time range in which ranks did not compute, as a score to find the worst."""
    spent = f'rank_cause:whyidle_device_seconds:increase{{{matchers}, family!="compute"}}'
    return f"sum by ({by}) ({over_range(spent, 'sum')})"


def largest(count: str | int, by: str, increases: str, hourly: str, also: str = "") -> str:
    """The sums over the time range that are largest, from selectors of recorded increases and of their sums of hours.

    In a range of more than a day, the sums of hours decide, with an error of an hour at most at either end. So use this
    in a hidden variable (:func:`.variables.worst`) that says which series a panel reads, and not as a figure. ``also``
    is a vector that is added.
    """

    def top(*parts: str) -> str:
        return f"topk({count}, sum by ({by}) ({' or '.join(filter(None, parts))}))"

    last = f'label_replace(sum_over_time({increases}[1h]), "part", "last", "", "")'
    exact = top(f"sum_over_time({increases}[${{exact}}s])", also)
    rough = top(f"sum_over_time({hourly}[$__range])", last, also)
    return by_length(exact, rough)


def by_length(short: str, long: str) -> str:
    """One vector for a time range of at most a day, and another for a longer one. Prometheus evaluates both."""
    if_short = f"on () vector($__range_s) <= {EXACT_SECONDS}"
    return f"(({short} and {if_short}) or ({long} unless {if_short}))"


def over_range(selector: str, function: str = "avg") -> str:
    """``avg``, ``max``, ``sum`` and so on of recorded series over the time range, one sample per point of the panel.

    It is evaluated at the end of the range, so that it is the same at every point of a trend. The distance of the
    samples grows with the range, so that a query over thirty days stays within Prometheus's limit of samples.
    """
    return f"{function}_over_time(({selector})[${{__range}}:$__interval] @ end())"


def device_hours(increases: str) -> str:
    """Device-hours in the time range, from the selector of recorded increases.

    It sums all samples, because each has the seconds since the sample before it.
    """
    return f"sum_over_time({increases}[${{__range}}]) / 3600"


def used_hours(chosen: str, families: str, level: str = "run_family") -> str:
    """Device-hours of the bill in the time range, to be summed, without ranks that train on the CPU beside their GPUs.

    They are on the bill, and beside the hours of these GPUs they would count twice.
    """
    of = f"{{{chosen}, {families}}}"
    return f"{device_hours(f'{level}:whyidle_billed_seconds:increase{of}')} or -{device_hours(f'{ON_CPUS}{of}')}"


def unused_hours(chosen: str) -> str:
    """Hours of GPUs that runs were given and that no rank used, by run."""
    return labelled(device_hours(f"{UNUSED_GPUS}{{{chosen}}}"), "family", HEADLINE)


def gpu_hours(chosen: str, families: str, level: str = "run_family") -> str:
    """GPU-hours of the bill, and of GPUs that no rank used, to be summed."""
    return f"{used_hours(chosen, families, level)} or {unused_hours(chosen)}"


def one_line(expr: str) -> str:
    """An expression that is written over several lines, on one line."""
    return " ".join(expr.split())
