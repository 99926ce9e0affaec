"""A step that does not end: a run that stands still, or that stood still before its end. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ..ledger.causes import CAUSE, OUTSIDE_CAUSES
from ..ledger.layout import FAILED, INTERRUPTED
from ..ledger.reader import Ledger, Step
from .ends import end_of
from .hang import HANG_SECONDS
from .recent import SAVING

STALL_FACTOR = 10.0
"""A step has stalled if it takes longer than this many median steps, and longer than HANG_SECONDS. Its time beyond one
median step counts as stalled."""
ASIDE: tuple[str, ...] = (*SAVING, "evaluation", "rollout")
"""Causes of what makes a step long although the rank has not stalled. Each is another part."""
_ASIDE_AT = [CAUSE[cause] for cause in ASIDE]
_OUTSIDE_AT = [CAUSE[cause] for cause in OUTSIDE_CAUSES]
_NO_STEP_PHASES = ("checkpoint", "restore", "eval", "rollout", *OUTSIDE_CAUSES)
"""The open step is not stalled in these. The phases outside the loop have the names of their causes."""


def aside_seconds(step: Step) -> float:
    """The seconds of a step in saves, evaluations and rollouts."""
    return sum([step.causes[at] for at in _ASIDE_AT]) / 1e9


def end_ns(ledger: Ledger, now_ns: int) -> int:
    """Now for a live rank, otherwise its last sign of life. On CLOCK_MONOTONIC."""
    return max(ledger.last_sign_ns, now_ns) if ledger.alive else ledger.last_sign_ns


def open_step_seconds(ledger: Ledger, until_ns: int) -> float:
    """How long the step has taken that was open at ``until_ns``. A rank that was killed, has failed or was interrupted
    was in a step too. 0 if none was, or in a save, an evaluation or a rollout."""
    if not ledger.ring:
        return 0.0
    cut_off = ledger.ended in (INTERRUPTED, FAILED) and ledger.rest is not None
    if not cut_off and (end_of(ledger) == "ended" or ledger.position.phase in _NO_STEP_PHASES):
        return 0.0
    spent = (until_ns - ledger.ring[-1].end_ns) / 1e9
    if ledger.rest is not None:
        spent -= aside_seconds(ledger.rest) + sum([ledger.rest.causes[at] for at in _OUTSIDE_AT]) / 1e9
    return spent


def beyond(steps: Iterable[float], usual: float) -> float:
    """The seconds beyond a usual step in those that have stalled."""
    return sum(spent - usual for spent in steps if spent > max(HANG_SECONDS, STALL_FACTOR * usual))


def standing_seconds(ledger: Ledger, now_ns: int) -> float:
    """For how long a rank has stood in its last step, or had when it ended, beyond a usual step; 0 if it goes on, or if
    a step before took as long."""
    if not ledger.ring:
        return 0.0
    steps = [step.wall_ns / 1e9 for step in ledger.ring]
    spent = open_step_seconds(ledger, end_ns(ledger, now_ns))
    return beyond([spent], median(steps)) if spent > max(steps) else 0.0
