"""Advice on ranks that are late because of their own compute: always the same ranks, or different ranks in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...ledger.causes import CAUSE, COLLECTIVE_OP, WORK_CAUSES
from ...verdict import shortage
from ...verdict.accounts import RankAccount
from ...verdict.case import open_charges
from ...verdict.where import makes_groups, spot_beside, text_of
from ..whatif.changes import Changes
from .case import Case
from .gains import formula, percent, replayed
from .rule import FLOOR, Found, Rule

_WORK = tuple(CAUSE[cause] for cause in (*WORK_CAUSES, "host_blocked"))
"""The causes that count as compute. On a CPU rank, work that leaves all CPUs idle is `host_blocked`."""
ALWAYS = 0.5
"""A rank with a slow device is the last in at least this share of the steps."""
NOT_LEARNED = 0.5
"""If at least this part of what makes a rank late is evaluation or generation, its device is not what is slow."""
UNEVEN = 1.2
"""A late rank has more work if it has this many times as many samples, or bytes of all_to_all, as the others."""
SAME = 1.05
"""Ranks have the same work if none has more than this many times the samples, or units of `whyidle.share`, of another
one."""
_EVEN = Changes(no_stragglers=True, late_by=("compute", "recompute"))
"""Another device changes the compute of a late rank, not what else makes it late."""


def _late(case: Case) -> float:
    """The share of time in which ranks waited for ranks that were late because of their compute. A rank that is missing
    in a collective that is open is not just late."""
    late = sum(late["share"] for late in case.verdict.get("late_ranks", ()) if late["family"] == "straggler")
    opened = sum(charge.seconds for charge in open_charges(case.account) if charge.family == "straggler")
    return max(0.0, late - opened / case.window)


def _apart(case: Case, late: Sequence[Mapping[str, Any]]) -> tuple[list[RankAccount], list[RankAccount]]:
    """The ranks that are late, and the others."""
    numbers = {one["rank"] for one in late}
    mine, rest = ([rank for rank in case.ranks if (rank.rank in numbers) == of] for of in (True, False))
    return mine, rest


def _does_more(case: Case, late: Sequence[Mapping[str, Any]]) -> bool:
    """Whether late ranks evaluate or generate for longer than others, or are late in few steps only: something that
    they do now and then."""
    ranks, _ = _apart(case, late)
    steps = max(rank.steps for rank in case.ranks)
    return sum(rank.late_steps for rank in ranks) < ALWAYS * steps or _learns_less(case, late)


def _learns_less(case: Case, late: Sequence[Mapping[str, Any]]) -> bool:
    """Whether most of what makes ranks late is evaluation or generation."""
    ranks, _ = _apart(case, late)
    least = min(rank.not_learned for rank in case.ranks)
    waited = sum(one["share"] for one in late) * case.window / max(1, len(case.ranks) - 1)
    return sum(rank.not_learned - least for rank in ranks) >= NOT_LEARNED * waited


def _evened(case: Case) -> float | None:
    """The share of time that is saved if in each step every rank has the mean work of all ranks."""
    if case.basis is None:
        return None
    saved = 0.0
    for steps in zip(*(one.steps for one in case.basis.trace.ranks), strict=True):
        work = [sum(step.own[cause] for cause in _WORK) for step in steps]
        saved += max(work) - sum(work) / len(work)
    return saved / sum(case.basis.walls)


def _drain(case: Case) -> Found | None:
    late = [one for one in case.verdict.get("late_ranks", ()) if one["family"] == "straggler"]
    if not late or case.pipeline or len(late) > len(case.ranks) / 2 or case.take_turns or _more_units(case, late):
        return None
    does, what = _has_more(case, late)
    if not does and not _learns_less(case, late) and (place := _beside(case, late)):
        does = "does this work beside the model"
        what = f"Let all ranks share the work in {place}, or do it before the training or in a separate process"
    if does:
        share, evened = _late(case), _evened(case)
        return Found(
            what,
            formula(share if evened is None else min(share, evened), 0.0, share),
            (f"others wait {percent(share)} of the time for {_named(late)}, which {does}",),
            {"ranks": _numbers(late)},
        )
    if _does_more(case, late) or makes_groups(case.ranks) or _has_left(case, late):
        return None
    nodes = {one["node"] for one in late}
    share = _late(case)
    if share < FLOOR or not_its_device(case, late):
        return None
    if case.nodes > 1 and len(nodes) == 1:
        change = f"Drain the node {late[0]['node']} and start the run without it"
    else:
        longer = "with the same work as the others it takes longer" if _same_work(case) else "it takes longer"
        change = f"Give {_named(late)} less work, or another device: {longer}"
    return Found(
        change,
        replayed(case, _EVEN) or formula(share),
        (f"others wait {percent(share)} of the time for {_named(late)}, which computes for longer than they do",),
        {"ranks": _numbers(late)},
    )


def _has_more(case: Case, late: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """What late ranks have more of than the others, and what to do about it. Empty if that is not known."""
    for of, does, what in _MORE_WORK:
        mine, rest = ([*map(of, ranks)] for ranks in _apart(case, late))
        most = max(rest, default=0.0)
        if most > 0 and mine and min(mine) >= UNEVEN * most:
            return does.format(min(mine) / most), what
    return "", ""


def _more_units(case: Case, late: Sequence[Mapping[str, Any]]) -> float:
    """How many times as many units `whyidle.share` gives to late ranks as to the others; 0 if it gives no more."""
    mine, rest = ([*map(_units, ranks)] for ranks in _apart(case, late))
    return _times(min(mine, default=0.0), max(rest, default=0.0))


def _times(more: float, less: float) -> float:
    return more / less if more > SAME * less > 0 else 0.0


def _units(rank: RankAccount) -> float:
    return rank.newest.words["shared_units"][0] / max(1, rank.newest.steps)


def _same_work(case: Case) -> bool:
    """Whether it is known that all ranks have the same work in a step."""
    samples = [*map(_samples, case.ranks)]
    passed = [*map(_passed_to_all, case.ranks)]
    if max(passed) > SAME * min(passed):
        return False
    known = [counts for counts in (samples, [_units(rank) for rank in case.ranks]) if min(counts) > 0]
    return bool(known) and all(max(counts) <= SAME * min(counts) for counts in known)


def _samples(rank: RankAccount) -> float:
    """The samples of a step, without those of evaluations, by their part of the batches."""
    learned = 1 - min(1.0, rank.eval_batches / rank.batches) if rank.batches else 1.0
    return learned * rank.samples / max(1, rank.steps)


def _passed_to_all(rank: RankAccount) -> float:
    """The bytes of a step that the rank passes to all_to_all, without those of evaluations and generation."""
    words, op = rank.newest.words, COLLECTIVE_OP["all_to_all"]
    return (words["collective_bytes"][op] - words["aside_bytes"][op]) / max(1, rank.newest.steps)


_MORE_WORK = (
    (
        _samples,
        "takes {:.1f} times as many samples in a step as the others",
        "Give all ranks the same number of samples in a step",
    ),
    (
        _passed_to_all,
        "passes {:.1f} times as many bytes to all_to_all in a step as the others: more tokens, its own or sent to it",
        "Balance what ranks send to each other: experts by a balancing loss or a capacity, embeddings by other shards",
    ),
)
"""A measure of a rank's work in a step, what a rank does that has more of it, and what to change."""


def not_its_device(case: Case, late: Sequence[Mapping[str, Any]]) -> str:
    """Why it is not known that the device of late ranks is slow; empty if it may be."""
    if more := _more_units(case, late):
        return f"whyidle.share gives {_named(late)} {more:.1f} times as many units in a step as the others"
    if does := _has_more(case, late)[0]:
        return f"{_named(late)} {does}"
    if any(rank.gaps_unknown for rank in _apart(case, late)[0]):
        return f"too few looks asked whether the GPU of {_named(late)} had work"
    waited = sum(one["share"] for one in late) * case.window / max(1, len(case.ranks) - 1)
    if sum(rank.gaps_unsure for rank in _apart(case, late)[0]) >= NOT_LEARNED * waited:
        return f"the GPU of {_named(late)} may have had no work while others waited: too few looks tell"
    return ""


def _numbers(late: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(one["rank"]) for one in late[:4]) + (" and more" if len(late) > 4 else "")


def _named(late: Sequence[Mapping[str, Any]]) -> str:
    return f"rank{'s' * (len(late) > 1)} {_numbers(late)}"


def _beside(case: Case, late: Sequence[Mapping[str, Any]]) -> str:
    """The place of the loop's own code in which late ranks are while others wait; empty if it is not known."""
    ranks, rest = _apart(case, late)
    spot = spot_beside(case.account, ranks)
    return text_of(spot) if spot and not spot_beside(case.account, rest) else ""


def _has_left(case: Case, late: Sequence[Mapping[str, Any]]) -> bool:
    """Whether others waited at the end in a collective that one of these ranks never entered."""
    left = {ledger.rank for found in case.account.unentered for ledger in found.missing}
    left |= {missing.ledger.rank for missing in case.account.missing}
    return any(one["rank"] in left for one in late)


def _uneven(case: Case) -> Found | None:
    share = _late(case)
    evened = _evened(case)
    if not share or evened is None or case.pipeline or not case.take_turns:
        return None
    units = [*map(_units, case.ranks)]
    if _times(max(units), min(units)) or shortage.reason(case.account, share * case.window):
        return None  # their batches may be even
    return Found(
        "Give all ranks batches of equal work: sort samples by length, or fill batches up to a number of tokens",
        formula(min(evened, share), 0.0, share),  # even work saves at most what ranks wait
        (f"ranks are late in turns by their compute, {percent(share)} of the time in total",),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "straggler.drain",
        ("straggler",),
        "At most half of the ranks are late by their own compute, always the same ranks, and in at least half of the"
        " steps. They do not evaluate or generate for longer than the others. Or they work beside the model where"
        " looks have found them, or have 1.2 times as many samples, or bytes of all_to_all, in a step. Not if"
        " `whyidle.share` gives them more units than the others",
        "Give the late rank another node or device. If it works beside the model: let all ranks share that. If it has"
        " more samples or tokens: balance them",
        "Replay in which no rank is late by its compute. If it has more work: what is saved if all ranks have the mean"
        " work. Lower bound then: 0",
        "`straggler` falls",
        _drain,
    ),
    Rule(
        "straggler.uneven",
        ("straggler",),
        "Ranks are late by their own compute, in turns. Not if `whyidle.share` gives some of them more units",
        "Give all ranks batches of equal work",
        "For each step, the most work of any rank minus the mean of all ranks. Upper bound: no rank waits"
        " for a late rank",
        "`straggler` falls",
        _uneven,
    ),
)
