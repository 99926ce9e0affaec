"""What a process did outside its loop: after its last step, between two trainings, and while a notebook waited for its
user. Pure functions.

It is outside the window, because no change of the loop would save it. A ledger knows the last two. That a step was the
last one is known only when the rank has ended. Waits for other ranks after the last step, and saves, stay what they
are. So does what a rank did before its last wait in a collective, because the others may have waited for it there. So
does the last one of evaluations that come at equal intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from ..ledger.causes import CAUSE, DATA_CAUSES, MAY_BE_OUTSIDE, PHASE_CAUSE
from ..ledger.layout import CLEAN
from ..ledger.reader import Ledger
from .ends import place_after_steps
from .hang import open_blocked, unbooked_seconds

_MOST_UNPLACED_NS = 10_000_000
"""Longer waits after the last step whose moments are not known may have been for what the rank did before them."""
_USUAL = 2
"""An evaluation after the last step that takes more than the others, times this, has a final test in it."""
SAID_SECONDS, SAID_SHARE = 1.0, 0.02
"""A report mentions time outside the loop that is this long, and this large beside the window."""


def has_ended(ledger: Ledger) -> bool:
    """Whether it is known that no other step followed the last one."""
    return not ledger.alive and (ledger.ended == CLEAN or ledger.has_returned)


def shutdown_of(ledger: Ledger) -> dict[str, int]:
    """What a rank did after its last step that nobody waited for: cause -> ns. Empty if no step was the last one."""
    rest = ledger.rest
    if rest is None or not has_ended(ledger):
        return {}
    own = {cause: rest.causes[CAUSE[cause]] for cause in MAY_BE_OUTSIDE}
    opened = unbooked_seconds(ledger, ledger.last_sign_ns)
    if not ledger.ended and (blocked := int(1e9 * open_blocked(ledger, opened))):
        # `rest` has it under the cause of its phase.
        own[PHASE_CAUSE[ledger.position.phase]] -= blocked
        own["host_blocked"] += blocked
    regular = _regular(ledger, own["evaluation"])
    if regular:
        for cause, ns in _waits_of(ledger, own, regular / own["evaluation"]).items():
            own[cause] -= ns
        own["evaluation"] -= regular
    left = max(0, _since_last_wait(ledger) - rest.causes[CAUSE["shutdown"]])
    for cause, ns in own.items():
        own[cause] = min(ns, left)
        left -= own[cause]
    return own


def evaluation_gaps(ledger: Ledger) -> list[int]:
    """Steps from one of the last evaluations to the next, and before the first one if it is known."""
    ring, count = ledger.words["evaluated_step"], ledger.words["evaluations"][0]
    kept = [ring[number % len(ring)] for number in range(max(0, count - len(ring)), count)]
    before = [0, *kept] if count <= len(ring) else kept
    return [after - earlier for earlier, after in pairwise(before)]


def evaluation_waits_ns(ledger: Ledger, after: Mapping[str, int]) -> int:
    """ns of waits for batches of evaluations that are a part of the loop. ``after``: `shutdown_of`."""
    evaluated = after and ledger.rest is not None and ledger.rest.causes[CAUSE["evaluation"]]
    gone = sum(after[cause] for cause in DATA_CAUSES) if evaluated else 0
    return max(0, ledger.words["eval_data_ns"][0] - gone)


def _regular(ledger: Ledger, ns: int) -> int:
    """The part of ``ns`` of evaluation after the last step that belongs to the loop: its interval has come."""
    gaps, count = evaluation_gaps(ledger), ledger.words["evaluations"][0]
    if len(gaps) < 2 or gaps[-1] != gaps[-2] or gaps[-1] <= 0:
        return 0
    at = CAUSE["evaluation"]
    all_ns = ledger.words["cause_ns"][at] - ledger.words["window_cause_ns"][at]
    return max(0, min(ns, _USUAL * (all_ns - ns) // (count - 1)))


def _waits_of(ledger: Ledger, own: dict[str, int], kept: float) -> dict[str, int]:
    """The waits for batches of the evaluation after the last step, of which the share ``kept`` belongs to the loop."""
    after = sum(own[cause] for cause in DATA_CAUSES)
    before = max(0, ledger.words["eval_data_ns"][0] - after)
    most = _USUAL * before / max(1, ledger.words["evaluations"][0] - 1)
    share = min(kept, most / after) if after else 0.0
    return {cause: int(share * own[cause]) for cause in DATA_CAUSES}


def _since_last_wait(ledger: Ledger) -> int:
    """ns from the end of the last wait in a collective to the end of a rank, if it waited after its last step;
    otherwise from that step."""
    rest = ledger.rest
    assert rest is not None
    calls = [call for call in ledger.calls if call.step == ledger.steps + 1]
    waited = rest.causes[CAUSE["collective"]]
    if sum(call.ns for call in calls) < waited - _MOST_UNPLACED_NS:
        return 0
    return max(0, rest.wall_ns - sum(call.gap_ns + call.ns for call in calls))


def sentences(rank: int, wall: float, spent: dict[str, float], newest: Ledger, attempts: int) -> list[str]:
    """What to say of the seconds outside the loop of a rank. ``wall``: its window, s."""
    said = {cause: s for cause, s in spent.items() if s >= max(SAID_SECONDS, SAID_SHARE * wall)}
    found: list[str] = []
    if "shutdown" in said:
        place = place_after_steps(newest) if attempts == 1 else ""
        at = f", at the end in {place}" if place else ""
        took = f"took {said['shutdown']:.1f} s to end"
        who = f"after its last step, rank {rank} {took}{at}"
        who = who if attempts == 1 else f"after their last steps, attempts of rank {rank} {took}"
        found.append(f"{who}: this is outside the loop")
    if "between" in said:
        found.append(f"rank {rank} spent {said['between']:.1f} s between two trainings: this is outside the loop")
    if newest.trainings > 1:
        found.append(f"rank {rank} has trained {newest.trainings} models, one after the other, in one process")
    if "interactive" in said:
        found.append(
            f"the notebook of rank {rank} waited {said['interactive']:.1f} s for its user between cells: this is"
            " outside the loop, but it kept its device"
        )
    return found
