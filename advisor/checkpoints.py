"""How often to save: the interval at which saves and failures together cost least. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, fsum, inf, lgamma, log, sqrt

from .goodput import Goodput

ALONE = 0.8
"""A rank with at least this share of the time of all ranks in saves is taken to save for the others, too."""


def young(mtbf: float, save: float) -> float:
    """Seconds of training between two saves: √(2·Tf·Ts), where Tf is the MTBF and Ts the time of a save (Young 1974, "A
    first order approximation to the optimum checkpoint interval", CACM 17(9)). Good while the result is much shorter
    than the MTBF."""
    return sqrt(2 * mtbf * save)


def optimal(mtbf: float, recovery: float, save: float) -> float:
    """Seconds from the end of a save to the end of the next one at which :func:`available` is greatest:
    Ts + √(2(Tf + Tr)Ts + Ts²), where Tr is the recovery (arXiv 2410.18124)."""
    return save + sqrt(2 * (mtbf + recovery) * save + save * save)


def available(cycle: float, mtbf: float, recovery: float, save: float) -> float:
    """The share of time that is progress if a save ends every ``cycle`` seconds (Tc).

    It is (1 − Ts/Tc) · Tf / (Tf + Tr + Tc/2): saves leave 1 − Ts/Tc of the time, and a failure every Tf seconds costs
    the recovery and on average the work of half a cycle. Assumes that failures are independent of each other and of
    saves. The maximum is at :func:`optimal`.
    """
    return (1 - save / cycle) * mtbf / (mtbf + recovery + cycle / 2) if cycle > save else 0.0


def mtbf_range(seconds: float, failures: int, confidence: float = 0.95) -> tuple[float, float]:
    """The confidence interval of the mean time between failures, after ``failures`` in ``seconds``.

    It is the exact interval of a Poisson count (Garwood 1936). Without a failure it is one-sided: the lower end is
    seconds / −ln(1 − confidence), and the upper end is infinite.
    """
    if not failures:
        return seconds / -log(1 - confidence), inf
    tail = (1 - confidence) / 2
    most = _mean_with(failures, tail)
    least = _mean_with(failures - 1, 1 - tail)
    return seconds / most, seconds / least


def _mean_with(count: int, chance: float) -> float:
    """The mean of the Poisson distribution in which at most ``count`` events have the probability ``chance``."""
    low, high = 0.0, 10.0 * (count + 10)
    for _ in range(200):
        middle = (low + high) / 2
        if _at_most(count, middle) > chance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(count: int, mean: float) -> float:
    """The chance of at most ``count`` events where ``mean`` are expected, of Poisson's distribution."""
    # With logarithms, since exp(-mean) is 0 for a mean above 745.
    return fsum(exp(number * log(mean) - mean - lgamma(number + 1)) for number in range(count + 1))


@dataclass(frozen=True)
class Saving:
    """What the saves of a run cost. All times in seconds."""

    saves: int
    blocked: float
    """How long one save blocks the training, on the rank that it blocks longest."""
    blocked_cpu: float
    """The part of `blocked` that serialises and copies. An asynchronous save blocks for no longer than this."""
    cycle: float
    """From the end of a save to the end of the next one. From the steps between two saves if they were seen, because
    attempts that were killed early have fewer saves."""
    step: float
    """The time of a step without saves, on average."""
    writers: int = 0
    """Ranks that could share a save that now one rank makes for all. 0 if ranks share it already, or if some ranks are
    not known."""


def saving_of(found: Goodput) -> Saving:
    """What the saves of a run cost. There must be at least one save, and at least one step."""
    known = 1 < found.ranks == found.world_size
    step = (found.stepping - found.blocked) / found.steps
    seen = found.rhythm
    return Saving(
        found.saves,
        seen.blocked if seen else found.blocked / found.saves,
        seen.blocked_cpu if seen else found.blocked_cpu / found.saves,
        seen.steps * step + seen.blocked if seen else found.stepping / found.saves,
        step,
        found.ranks if known and found.blocked >= ALONE * found.seconds["saving"] else 0,
    )


@dataclass(frozen=True)
class Interval:
    """One interval between saves, and the progress that it leaves."""

    name: str
    cycle: float
    """Seconds from the end of a save to the end of the next one."""
    steps: float
    """The number of steps between two saves."""
    available: float
    """The share of time that is progress."""
    gained: float
    """`available` minus that of the interval in use."""


@dataclass(frozen=True)
class Advice:
    """Intervals between saves, compared for one run. Times in seconds."""

    mtbf: float
    recovery: float
    in_use: Interval
    recommended: list[Interval]
    hidden: Interval
    """The interval in use, if saves blocked only for their CPU part."""
    sharded: Interval | None
    """The interval in use, if each rank saved its own part and the storage kept up. None if ranks do that already."""


def advise(saving: Saving, mtbf: float, recovery: float) -> Advice:
    """Compares intervals between saves. ``saving.cycle``, ``saving.step`` and ``mtbf`` must be above 0."""
    save = saving.blocked

    def interval(name: str, cycle: float, cost: float) -> Interval:
        share = available(cycle, mtbf, recovery, cost)
        return Interval(name, cycle, (cycle - cost) / saving.step, share, share - now)

    def in_steps(name: str, cost: float) -> Interval:
        """A save, with as many steps between two saves as now."""
        return interval(name, saving.cycle - save + cost, cost)

    now = available(saving.cycle, mtbf, recovery, save)
    return Advice(
        mtbf,
        recovery,
        interval("in use", saving.cycle, save),
        [
            interval("Young", young(mtbf, save) + save, save),
            interval("availability-optimal", optimal(mtbf, recovery, save), save),
        ],
        in_steps("asynchronous", saving.blocked_cpu),
        in_steps("sharded", save / saving.writers) if saving.writers else None,
    )
