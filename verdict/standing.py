"""A step that does not end: a run that stands still, or that stood still before its end. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from statistics import median

from ..ledger.causes import CAUSE, OUTSIDE_CAUSES
from ..ledger.layout import FAILED, INTERRUPTED
from ..ledger.reader import Ledger, Step
from .ends import end_of, named, place_after_steps
from .hang import HANG_SECONDS, open_blocked, open_seconds, silent_seconds
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


def sentences(newest: Collection[Ledger], now_ns: int, told: Collection[int]) -> list[str]:
    """Which ranks have been in compute, or blocked, for longer than any step took, or had when they ended.

    ``told``: ranks for which others wait. Other sentences say where they are.
    """
    stands: dict[tuple[bool, bool, bool, str], dict[int, float]] = {}
    for ledger in newest:
        # What `finish_sentences` says of a silent rank, or of one that may have finished, is enough.
        elsewhere = ledger.position.phase != "compute" or ledger.stands_still or silent_seconds(ledger, now_ns)
        if elsewhere or ledger.rank in told or not standing_seconds(ledger, now_ns):
            continue
        seconds = open_seconds(ledger, end_ns(ledger, now_ns))
        if seconds > max(HANG_SECONDS, *(step.wall_ns / 1e9 for step in ledger.ring)):
            place = place_after_steps(ledger)
            how = ledger.alive, ledger.device != "cpu", 2 * open_blocked(ledger, seconds) > seconds, place
            stands.setdefault(how, {})[ledger.rank] = seconds
    return [_sentence(ranks, *how) for how, ranks in stands.items()]


def _sentence(ranks: dict[int, float], alive: bool, on_device: bool, blocked: bool, place: str) -> str:
    one = len(ranks) == 1
    its, devices = ("its", "device") if one else ("their", "devices")
    if alive:
        been, ended, hang = f"{'has' if one else 'have'} been", "", "hang"
    else:
        been, ended, hang = ("was", " when it ended", "have hung") if one else ("were", " when they ended", "have hung")
    doing = f"blocked in {its} own code" if blocked else "in compute"
    hangs = f": work on {its} {devices} may {hang}" if on_device else ""
    return (
        f"{named([*ranks])} {been} {doing} for {min(ranks.values()):.1f} s{ended}, longer than any of {its} last"
        f" steps took{f', at {place}' if place else ''}{hangs}"
    )
