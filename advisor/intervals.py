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
_OVERDUE = 2
"""There is no rhythm if no save was made for more than this number of intervals: a loop saves only what is best, for
example, or only at its start."""


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
    if not gaps or not saves or max(map(_since, savers)) > _OVERDUE * max(gaps):
        return None
    cpu = mean(causes[_CPU] for causes in saves)
    return Rhythm(median(gaps), (cpu + mean(causes[_WRITE] for causes in saves)) / 1e9, cpu / 1e9)


def _blocked(causes: Sequence[int]) -> int:
    return causes[_WRITE] + causes[_CPU]


def _gaps(ledger: Ledger) -> list[int]:
    """The steps between the saves of an attempt."""
    saved = _saved(ledger)
    return [after - before for before, after in pairwise(saved)]


def _first(ledger: Ledger) -> list[float]:
    """The steps from the start of an attempt, which is at a save or at the start of the run, to its only save."""
    saved = _saved(ledger)
    first = saved[0] - ledger.base_step if len(saved) == 1 else 0
    return [first] if first > 0 and _since(ledger) <= _OVERDUE * first else []


def _since(ledger: Ledger) -> int:
    """The steps of an attempt since its last save, or since its start."""
    return ledger.base_step + ledger.steps - max([ledger.base_step, *_saved(ledger)])


def _saved(ledger: Ledger) -> list[int]:
    """After which steps the attempt has saved, as far as it is known. A last one that may be an export is left out: it
    is after the last step of a run that has ended, or sooner after the save before than any other."""
    noted = ledger.saves
    ring = [step.number - 1 for step in ledger.ring if _blocked(step.causes)]
    saved = sorted({save.step for save in noted} if noted else {*ring})
    if len(saved) < 1 or end_of(ledger) != "ended":
        return saved
    gaps = [after - before for before, after in pairwise(saved)]
    # A save after the last step is blocked in no step. That of a regular interval tells no more than those before it.
    after_last = saved[-1] >= ledger.base_step + ledger.steps
    if after_last or (len(gaps) > 1 and gaps[-1] < min(gaps[:-1])):
        saved.pop()
    return saved
