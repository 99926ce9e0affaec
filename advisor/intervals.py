"""How often a run really saves, from the steps that its ledgers still have. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

from ..ledger.causes import CAUSE, CHECKPOINT_KINDS
from ..ledger.reader import Ledger
from ..verdict.ends import end_of

_WRITE, _CPU = CAUSE["checkpoint_write"], CAUSE["checkpoint_cpu"]
_SAVE = CHECKPOINT_KINDS.index("save")


@dataclass(frozen=True, slots=True)
class Rhythm:
    """What was seen of a run's saves. Several files of one step are one save."""

    steps: float
    """From one save to the next one, in steps."""
    blocked: float
    """Seconds for which a save blocks the loop, and how many of them are on a CPU."""
    blocked_cpu: float


def rhythm_of(ledgers: Iterable[Ledger]) -> Rhythm | None:
    """The rhythm of the saves of a run; None if it was not seen. ``ledgers``: all of the run, read with their steps.

    A save after the last step of an attempt is not a part of the rhythm: it may be an export.
    """
    by_attempt: dict[int, list[Ledger]] = {}
    for ledger in ledgers:
        by_attempt.setdefault(ledger.attempt, []).append(ledger)
    savers = [max(ranks, key=lambda one: sum(one.words["checkpoints"])) for ranks in by_attempt.values()]
    saves = [step.causes for one in savers for step in one.ring if _blocked(step.causes)]
    gaps = [gap for one in savers for gap in _gaps(one)] or [gap for one in savers for gap in _first(one)]
    if not gaps or not saves:
        return None
    cpu = mean(causes[_CPU] for causes in saves)
    return Rhythm(median(gaps), (cpu + mean(causes[_WRITE] for causes in saves)) / 1e9, cpu / 1e9)


def _blocked(causes: Sequence[int]) -> int:
    return causes[_WRITE] + causes[_CPU]


def _gaps(ledger: Ledger) -> list[int]:
    """The steps between the saves of an attempt."""
    numbers = [step.number for step in ledger.ring if _blocked(step.causes)]
    gaps = [after - before for before, after in pairwise(numbers)]
    if end_of(ledger) == "ended" and len(gaps) > 1 and gaps[-1] < min(gaps[:-1]):
        gaps.pop()  # the last save of a run that has ended may be an export
    return gaps


def _first(ledger: Ledger) -> list[float]:
    """The steps from the start of an attempt, which is at a save or at the start of the run, to its only save."""
    saved = ledger.checkpoint_step - ledger.base_step
    if saved <= 0 or not any(_blocked(step.causes) for step in ledger.ring):
        return []
    return [saved / max(1, ledger.words["checkpoints"][_SAVE])]
