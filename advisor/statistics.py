"""Confidence intervals of means, differences and ratios over the steps of a run, which are not independent.

Neighbouring steps are alike (a slow hour, a slow shard), so n steps tell less than n independent observations. The
means of blocks of √n steps are nearly independent, and their spread gives the error of the mean. This is the method of
batch means, with the batch size of Flegal and Jones (2010, Annals of Statistics 38(2)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, fmean, variance

from ..verdict.accounts import quantile

CONFIDENCE = 0.95
LEAST_STEPS = 16
"""With fewer steps there is no interval, because there would be fewer than four blocks."""
RESAMPLES = 400
_NORMAL = NormalDist()

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its error."""

    mean: float
    error: float
    """The standard error of the mean."""
    freedom: float
    """The degrees of freedom of the error."""

    def around(self, mean: float) -> Estimate:
        """The same error, around a mean that another source gives."""
        return Estimate(mean, self.error, self.freedom)


def of_blocks(series: Sequence[float]) -> Estimate | None:
    """The mean of steps, given in their order, with the error by batch means. None for fewer than LEAST_STEPS."""
    if len(series) < LEAST_STEPS:
        return None
    size = math.isqrt(len(series))
    first = len(series) % size + size  # the end of the first block, which is longer: each step counts for the error
    blocks = [fmean(series[:first]), *(fmean(series[at : at + size]) for at in range(first, len(series), size))]
    return Estimate(fmean(series), math.sqrt(variance(blocks) / len(blocks)), len(blocks) - 1)


def of_events(values: Sequence[float]) -> Estimate | None:
    """The mean of independent events, such as saves, with its error. None for fewer than three."""
    if len(values) < 3:
        return None
    return Estimate(fmean(values), math.sqrt(variance(values) / len(values)), len(values) - 1)


def difference(one: Estimate, other: Estimate) -> Interval:
    """The CONFIDENCE interval of other − one: Welch's t interval (Welch 1947, Biometrika 34)."""
    a, b = one.error**2, other.error**2
    half = _t(_freedom(a, one.freedom, b, other.freedom)) * math.sqrt(a + b) if a + b > 0 else 0.0
    return other.mean - one.mean - half, other.mean - one.mean + half


def ratio(one: Estimate, other: Estimate) -> Interval | None:
    """The CONFIDENCE interval of one / other, by Fieller's theorem (1954, J. R. Stat. Soc. B 16(2)).

    The interval has every r for which one − r·other is not significantly different from 0. So it contains 1 exactly if
    the interval of `difference` contains 0. None if ``other`` is not significantly different from 0: then the ratio has
    no bounds.
    """
    a, b = one.error**2, other.error**2
    squared = _t(_freedom(a, one.freedom, b, other.freedom)) ** 2 if a + b > 0 else 0.0
    leading, product = other.mean**2 - squared * b, one.mean * other.mean
    if leading <= 0:
        return None
    root = math.sqrt(max(0.0, product**2 - leading * (one.mean**2 - squared * a)))
    return max(0.0, (product - root) / leading), (product + root) / leading


def _freedom(a: float, a_freedom: float, b: float, b_freedom: float) -> float:
    """The degrees of freedom of the sum of two squared errors (Welch and Satterthwaite)."""
    below = a * a / a_freedom + b * b / b_freedom
    return (a + b) ** 2 / below if below > 0 else math.inf


def _t(freedom: float) -> float:
    """The two-sided quantile of Student's t at CONFIDENCE.

    Exact for 1 and 2 degrees of freedom. From 3 degrees on it is the expansion of Abramowitz and Stegun, 26.7.5, to
    four terms, which is within 0.3 %.
    """
    p = 1 - (1 - CONFIDENCE) / 2
    if freedom < 2:
        return math.tan(math.pi * (p - 0.5))
    if freedom < 3:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z = _NORMAL.inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def block_length(steps: int) -> int:
    """The number of steps in a block of the bootstrap: about the cube root of all steps."""
    return max(1, round(steps ** (1 / 3)))


def quantile_draws(series: Sequence[float], q: float, seed: int) -> list[float] | None:
    """RESAMPLES values that the quantile could have over other steps, by a circular block bootstrap (Politis and
    Romano, 1992). None for fewer than LEAST_STEPS."""
    count = len(series)
    if count < LEAST_STEPS:
        return None
    size, random = block_length(count), Random(seed)
    twice = [*series, *series]
    drawn = []
    for _ in range(RESAMPLES):
        starts = random.choices(range(count), k=-(-count // size))
        values = [value for start in starts for value in twice[start : start + size]]
        drawn.append(quantile(sorted(values[:count]), q))
    return drawn


def of_draws(draws: Sequence[float]) -> Interval:
    """The CONFIDENCE interval of values that a bootstrap has drawn."""
    ordered = sorted(draws)
    cut = round(len(ordered) * (1 - CONFIDENCE) / 2)
    return ordered[cut], ordered[-1 - cut]
