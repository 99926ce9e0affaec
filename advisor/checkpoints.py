"""How often to save: what a save costs, what a failure costs, and the interval between both. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log, sqrt

from .goodput import Goodput


def young(mtbf: float, save: float) -> float:
    """√(2·Tf·Ts): seconds of training between two saves (Young 1974, "A first order approximation to the optimum
    checkpoint interval", CACM 17(9)). Good while it is much shorter than the MTBF."""
    return sqrt(2 * mtbf * save)


def optimal(mtbf: float, recovery: float, save: float) -> float:
    """Ts + √(2(Tf + Tr)Ts + Ts²): seconds from one save's end to the next one's end at which :func:`available` is
    greatest (arXiv 2410.18124)."""
    return save + sqrt(2 * (mtbf + recovery) * save + save * save)


def available(cycle: float, mtbf: float, recovery: float, save: float) -> float:
    """The share of time that is progress when a save ends each ``cycle`` seconds: 1 − Ts/Tc of it, of which a failure
    each Tf takes the recovery and, on average, half a cycle's work: (1 − Ts/Tc) · Tf / (Tf + Tr + Tc/2).

    Assumes failures that are independent of each other and of saves. Its maximum is at :func:`optimal`.
    """
    return (1 - save / cycle) * mtbf / (mtbf + recovery + cycle / 2) if cycle > save else 0.0


def mtbf_range(seconds: float, failures: int, confidence: float = 0.95) -> tuple[float, float]:
    """Within which the mean time between failures lies, by ``failures`` in ``seconds``; the upper end may be infinite.

    The exact interval of a Poisson count (Garwood 1936). Without a failure: one-sided, at least seconds / −ln(1 − c).
    """
    if not failures:
        return seconds / -log(1 - confidence), inf
    tail = (1 - confidence) / 2
    most = _mean_with(failures, tail)
    least = _mean_with(failures - 1, 1 - tail)
    return seconds / most, seconds / least


def _mean_with(count: int, chance: float) -> float:
    """The mean of the Poisson distribution in which at most ``count`` has that chance."""
    low, high = 0.0, 10.0 * (count + 10)
    for _ in range(200):
        middle = (low + high) / 2
        if _at_most(count, middle) > chance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(count: int, mean: float) -> float:
    term = total = exp(-mean)
    for number in range(1, count + 1):
        term *= mean / number
        total += term
    return total


@dataclass(frozen=True)
class Saving:
    """What saves of a run cost. Seconds."""

    saves: int
    blocked: float
    """The training, by one save: of the rank that it blocks for longest."""
    blocked_cpu: float
    """Of it: serialising and copying. An asynchronous save blocks for a copy at most."""
    cycle: float
    """From one save's end to the next one's, on average."""
    step: float
    """Of a step, saves left out."""


def saving_of(found: Goodput) -> Saving:
    """What the saves of a run cost. There must be at least one save, and at least one step."""
    step = (found.stepping - found.blocked) / found.steps
    return Saving(
        found.saves, found.blocked / found.saves, found.blocked_cpu / found.saves, found.stepping / found.saves, step
    )


@dataclass(frozen=True)
class Interval:
    """One way to save, and what comes of it."""

    name: str
    cycle: float
    """Seconds from one save's end to the next one's."""
    steps: float
    """Between two saves."""
    available: float
    """The share of time that is progress."""
    gained: float
    """... beyond that of the interval in use."""


@dataclass(frozen=True)
class Advice:
    mtbf: float
    recovery: float
    in_use: Interval
    recommended: list[Interval]
    hidden: Interval
    """With saves that block for their CPU part alone, at the interval in use."""


def advise(saving: Saving, mtbf: float, recovery: float) -> Advice:
    """Compares intervals. ``saving.cycle``, ``saving.step`` and ``mtbf`` must be above 0."""
    save = saving.blocked

    def interval(name: str, cycle: float, cost: float) -> Interval:
        share = available(cycle, mtbf, recovery, cost)
        return Interval(name, cycle, (cycle - cost) / saving.step, share, share - now)

    now = available(saving.cycle, mtbf, recovery, save)
    return Advice(
        mtbf,
        recovery,
        interval("in use", saving.cycle, save),
        [
            interval("Young", young(mtbf, save) + save, save),
            interval("availability-optimal", optimal(mtbf, recovery, save), save),
        ],
        interval("asynchronous", saving.cycle - save + saving.blocked_cpu, saving.blocked_cpu),
    )
