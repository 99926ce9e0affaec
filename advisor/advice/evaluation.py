"""Advice on evaluations: less often, or on all ranks."""

from __future__ import annotations

from ...ledger.causes import DATA_CAUSES
from ...ledger.programs import EVALUATION
from ...verdict.aside import asides
from ...verdict.ends import named as ranks_named
from .case import Case
from .gains import percent, without
from .options import named
from .rule import FLOOR, Found, Gain, Rule

LEAST_SHARE = 0.05
"""Evaluations that take less of the loop are left alone."""
LEAST_SEEN = 2
"""How often the loop must have evaluated. One evaluation may be the last one."""


def _share_of(gain: Gain, part: float) -> Gain:
    return Gain(part * gain.share, part * gain.least, part * gain.most, gain.how)


def _and_waits(gain: Gain, waits: float) -> Gain:
    """The same, and the waits and the idle time in evaluations. Other ranks may be later, so the lower bound has
    none."""
    return Gain(min(1.0, gain.share + waits), gain.least, min(1.0, gain.most + waits), gain.how)


def _by_batches(case: Case) -> bool:
    """Whether all ranks evaluate. Then one may do more with the results."""
    return all(rank.eval_batches for rank in case.ranks)


def _alone(case: Case) -> list[int]:
    """The ranks that evaluate, if others do not."""
    spent = {rank.rank: rank.seconds["evaluation"] for rank in case.ranks}
    if _by_batches(case):
        spent = {rank.rank: float(rank.eval_batches) for rank in case.ranks}
    most = max(spent.values())
    mine = [rank for rank, seconds in spent.items() if 2 * seconds > most]
    return mine if most > 0 and len(mine) < len(spent) else []


def _seldom(case: Case) -> Found | None:
    found = next((one for one in asides(case.account) if one.cause == "evaluation"), None)
    if found is None or found.every is None or found.count < LEAST_SEEN:
        return None
    beside = found.waits + found.idle
    if found.share + beside < LEAST_SHARE:
        return None
    more = round(2 * found.every)
    name = named(case, EVALUATION)
    often = f" ({name.to()})" if name is not None else ""
    return Found(
        f"Evaluate every {more} steps instead of every {found.every:.0f}{often}, or on half as many batches",
        _share_of(_and_waits(without(case, "evaluation"), beside), 0.5),
        (
            f"the loop evaluates for {percent(found.share)} of the time"
            + (f", and waits {percent(found.waits)} for batches of evaluations" if found.waits >= FLOOR else "")
            + (f", and is idle in evaluations for {percent(found.idle)}" if found.idle >= FLOOR else ""),
        ),
        {"evaluation_steps": more},
    )


def _together(case: Case) -> Found | None:
    alone = _alone(case)
    if not alone or case.pipeline:
        return None
    those = [rank for rank in case.ranks if rank.rank in alone]
    share = max([rank.seconds["evaluation"] / rank.wall for rank in those if rank.wall > 0], default=0.0)
    gain = _share_of(without(case, "evaluation"), 1 - len(alone) / len(case.ranks))
    if share < LEAST_SHARE or gain.share < FLOOR:
        return None
    others = any(rank.seconds["evaluation"] for rank in case.ranks if rank.rank not in alone)
    rest = "the others for less than half as long" if others else "the others do not"
    if _by_batches(case):
        rest = "the others take less than half as many batches"
    return Found(
        "Evaluate on all ranks, each on its part of the batches",
        gain,
        (f"{ranks_named([*alone])} evaluate{'s' * (len(alone) == 1)} for {percent(share)} of the time, and {rest}",),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "evaluation.less",
        ("compute",),
        "The loop evaluates for 5 % of the time or more, and has done so at least twice",
        "Evaluate half as often, or on half as many batches",
        "Half of a replay without `evaluation`, and half of the waits for its batches and of the idle time in it."
        " Lower bound: without these",
        "`evaluation` falls",
        _seldom,
        removes=("evaluation", "straggler", "host", "host_blocked", *DATA_CAUSES),
    ),
    Rule(
        "evaluation.ranks",
        ("compute",),
        "Some ranks evaluate for 5 % of the time or more, and the others for less than half as long, or take less than"
        " half as many batches. Not in a pipeline",
        "Share the batches of the evaluation among all ranks",
        "Replay without `evaluation`, times the share of the ranks that do not evaluate",
        "`evaluation` falls on the ranks that evaluate, `straggler` on the others",
        _together,
        removes=("evaluation", "straggler"),
    ),
)
