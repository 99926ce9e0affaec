"""The measures by which runs are compared, each with the steps or saves it comes from, if known. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from ...ledger.causes import CAUSE_FAMILY, FAMILIES
from ...verdict.accounts import quantile
from ...verdict.recent import DATA, WAIT_FAMILIES, WAITED
from ...verdict.saved import Report, is_number
from ..statistics import Estimate, of_blocks, of_events

UNSPLIT = 0.05
"""If a larger share of the waits in the sample is unsplit, each wait family gets the error of all waits together."""
TYPICAL = 0.5
"""The last steps give the error of a family only if their mean is at least this part of the family's mean over the
whole run. What is rare, or happened outside the last steps, varies in ways that they do not show."""
TRIFLE = 0.01
"""A family with less than this share of the time always gets an error: if the last steps are not typical, as if it had
been lost at once."""


class NoComparison(ValueError):
    """The reports cannot be compared. The message is a sentence without its full stop."""


class Value(NamedTuple):
    """A measure of one run, in seconds."""

    value: float
    estimate: Estimate | None = None
    """The error, if the value is a mean over steps or saves."""
    series: Sequence[float] = ()
    """The sample, if the value is a quantile of it."""
    q: float = 0.0
    """Which quantile, from 0 to 1."""

    @property
    def unseen(self) -> bool:
        """Whether less than one value of the sample is expected beyond the quantile: the bootstrap of such a sample
        knows nothing of what is beyond."""
        return 0 < len(self.series) < 1 / max(1e-9, min(self.q, 1 - self.q))


class Measure(NamedTuple):
    """A row of the comparison."""

    name: str
    """The name in `--fail-if`."""
    label: str
    what: str
    of: Callable[[Report], Value | None]
    """Takes the measure from a report. Returns None if the report does not have it."""


def rank_steps(report: Report) -> float:
    """The steps of all ranks together."""
    return sum(rank["steps"] for rank in report["per_rank"])


def check_steps(name: str, report: Report) -> None:
    """Raises NoComparison if a step of the report has no length."""
    if not rank_steps(report):
        raise NoComparison(f"{name} has finished no step: there is nothing to compare")
    if report["rank_seconds"] <= 0:
        raise NoComparison(f"{name} has steps, but they took no time")


def seconds_per_step(report: Report) -> float:
    """The mean time of a step from the first step to the end, which is the sum of the families."""
    return report["rank_seconds"] / rank_steps(report)


def family_values(report: Report) -> dict[str, Value]:
    """The seconds of a step by family, as means over all ranks and steps. They sum to `seconds_per_step`.

    Their errors come from the last steps.
    """
    steps = rank_steps(report)
    spent = dict.fromkeys(FAMILIES, 0.0)
    for cause, seconds in report["seconds"].items():
        spent[CAUSE_FAMILY[cause]] += seconds
    errors = _errors(report, spent)
    return {
        family: Value(seconds / steps, found.around(seconds / steps) if (found := errors.get(family)) else None)
        for family, seconds in spent.items()
    }


def _errors(report: Report, spent: Mapping[str, float]) -> dict[str, Estimate]:
    """The error of each family, from the last steps, for families of which these steps are typical."""
    recent = report.get("recent")
    if not recent:
        return {}
    series: dict[str, list[float]] = recent["families"]
    count = len(recent["step_seconds"])
    nothing = [0.0] * count
    waits = [WAITED, *WAIT_FAMILIES]
    waited = [sum(at) for at in zip(*(series.get(name, nothing) for name in waits), strict=True)]
    unsplit = sum(series.get(WAITED, ())) + sum(series.get("communication", ()))
    together = unsplit > UNSPLIT * sum(waited)
    found = {}
    for family in FAMILIES:
        own = waited if together and family in WAIT_FAMILIES else series.get(family, nothing)
        estimate, mean = of_blocks(own), spent[family] / rank_steps(report)
        if estimate and estimate.mean >= TYPICAL * mean:
            found[family] = estimate
        elif estimate and spent[family] < TRIFLE * report["rank_seconds"]:
            found[family] = Estimate(estimate.mean, max(estimate.error, mean), estimate.freedom)
    return found


def _sampled(name: str) -> Callable[[Report], Sequence[float]]:
    return lambda report: (report.get("recent") or {}).get(name) or ()


_STEPS, _WAITS, _LONGEST, _SAVES = map(
    _sampled, ("step_seconds", "data_wait_seconds", "longest_data_wait_seconds", "save_seconds")
)


def _mean_of(series: Callable[[Report], Sequence[float]]) -> Callable[[Report], Value | None]:
    def of(report: Report) -> Value | None:
        values = series(report)
        return Value(fmean(values), of_blocks(values)) if values else None

    return of


def _quantile_of(series: Callable[[Report], Sequence[float]], q: float) -> Callable[[Report], Value | None]:
    def of(report: Report) -> Value | None:
        values = series(report)
        return Value(quantile(sorted(values), q), None, values if q < 1 else (), q) if values else None

    return of


def whole_value(report: Report) -> Value:
    """`seconds_per_step`, with the error from the last steps."""
    mean = seconds_per_step(report)
    estimate = of_blocks(_STEPS(report))
    return Value(mean, estimate.around(mean) if estimate else None)


def _step_quantile(name: str, q: float) -> Callable[[Report], Value | None]:
    """From the histogram if a report has one, as those from Prometheus do; otherwise from the last steps."""
    of_steps = _quantile_of(_STEPS, q)

    def of(report: Report) -> Value | None:
        counted = report.get("step_quantiles")
        if counted is None:
            return of_steps(report)
        return Value(counted[name]) if name in counted else None

    return of


_STEP_MEDIAN, _STEP_P99 = _step_quantile("p50", 0.5), _step_quantile("p99", 0.99)


def _median(report: Report) -> Value | None:
    """The median step. If a report lacks the last steps, it is the median of the ranks' own medians."""
    if found := _STEP_MEDIAN(report):
        return found
    known: list[Any] = [rank.get("step_seconds") for rank in report["per_rank"]]
    medians = [one["p50"] for one in known if isinstance(one, dict) and is_number(one.get("p50"))]
    return Value(quantile(sorted(medians), 0.5)) if medians else None


def _startup(report: Report) -> Value | None:
    known = report["startup_seconds"]
    return None if known is None else Value(known / _attempts(report))


def _attempts(report: Report) -> int:
    """How often its ranks started. Startups of all attempts are added up."""
    return max([1, *(rank.get("attempts") or 1 for rank in report.get("per_rank") or ())])


def _dataset(report: Report) -> Value | None:
    before, first = report.get("startup") or {}, report.get("first_batch_seconds")
    return None if first is None else Value(first + sum(before.get(cause, 0.0) for cause in DATA) / _attempts(report))


def _each(report: Report, name: str) -> float | None:
    counted = report.get(name) or {}
    return counted["seconds"] / counted["count"] if counted.get("count") and "seconds" in counted else None


def _restore(report: Report) -> Value | None:
    each = _each(report, "restores")
    return None if each is None else Value(each)


def _save(report: Report) -> Value | None:
    each = _each(report, "saves")
    if each is None:
        return None
    estimate = of_events([seconds for seconds in _SAVES(report) if seconds > 0])
    return Value(each, estimate.around(each) if estimate else None)


def end_to_end(report: Report, steps: float) -> Value | None:
    """The time of the startup and of ``steps`` steps; None if the startup is not known."""
    startup = _startup(report)
    return None if startup is None else Value(startup.value + steps * seconds_per_step(report))


MEASURES: tuple[Measure, ...] = (
    Measure("startup", "startup", "from the start of the process to its first step", _startup),
    Measure("dataset", "dataset load", "waits for data during startup, and the wait for the first batch", _dataset),
    Measure("restore", "model restore", "one restore, on the rank that it blocks longest", _restore),
    Measure("batch", "batch wait, mean", "per step, the mean over the ranks", _mean_of(_WAITS)),
    Measure("batch-p99", "batch wait, p99", "of the rank that waits longest in a step", _quantile_of(_LONGEST, 0.99)),
    Measure("batch-worst", "batch wait, worst", "of the rank that waits longest", _quantile_of(_LONGEST, 1.0)),
    Measure("step", "step time, mean", "of the last steps", _mean_of(_STEPS)),
    Measure("step-p50", "step time, median", "of the last steps", _median),
    Measure("step-p99", "step time, p99", "of the last steps", _STEP_P99),
    Measure("save", "checkpoint", "one save, on the rank that it blocks longest", _save),
)
"""The measures, in the order of the table. `end` (end to end) comes after them, because it needs the steps of all
runs."""
END = "end"
NAMES: tuple[str, ...] = (*(measure.name for measure in MEASURES), END, *FAMILIES)
"""The names that `--fail-if` accepts, besides speed-up and efficiency."""
