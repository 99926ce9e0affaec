"""Advice on saves: whether they block the loop, which ranks write them, and how often."""

from __future__ import annotations

from statistics import mean

from ...ledger.programs import SAVES
from ...verdict import sampled
from ...verdict.ends import counted
from ...verdict.mounts import full
from ..checkpoints import ALONE, advise, available, mtbf_range, saving_of
from ..whatif.changes import Changes
from .case import Case
from .gains import at_most, formula, percent, replayed, without
from .options import asynchronous_save, named
from .rule import Found, Gain, Rule

_NEVER = 1e12
"""Seconds between failures, if there may be none."""
FAILURES = 2
"""Fewer failures say nothing about how often they happen."""


def _async(case: Case) -> Found | None:
    blocked, cpu = case.share("checkpoint_write"), case.share("checkpoint_cpu")
    if sampled.is_sampled(case.ranks, "checkpoint_write", "checkpoint_cpu"):
        return Found(
            "Copy what is saved, and let a thread or another process serialise and write it",
            formula(blocked + cpu, 0.0, blocked + cpu),
            (f"the loop saves in its own way {percent(blocked + cpu)} of the time",),
        )
    if not blocked or any(rank.newest.words["saves_behind"][0] for rank in case.ranks):
        return None  # or it saves asynchronously already
    gain = replayed(case, Changes(async_save=True)) or without(case, "checkpoint_write")
    # Each save must be written before the next one.
    share, least, most = (min(each, 1 - blocked) for each in (gain.share, gain.least, gain.most))
    gain = Gain(share, least, most, gain.how)
    how = asynchronous_save(case) or "torch.distributed.checkpoint.async_save"
    return Found(
        f"Save asynchronously ({how}): the loop then waits for the copy alone",
        gain,
        (f"saves block the loop {percent(blocked)} of the time, and copy or serialise {percent(cpu)}",),
    )


def _sharded(case: Case) -> Found | None:
    spent = {rank.rank: rank.seconds["checkpoint_write"] + rank.seconds["checkpoint_cpu"] for rank in case.ranks}
    ranks, whole = len(spent), sum(spent.values())
    if ranks < 2 or not whole or max(spent.values()) < ALONE * whole:
        return None
    who = max(spent, key=lambda rank: spent[rank])
    found = replayed(case, Changes(checkpoint=1 / ranks))
    if full(case.ranks, "save") >= ALONE:
        return None
    gain = Gain(found.share, 0.0, found.most, "replay") if found else formula(whole / case.window)
    return Found(
        f"Have each of the {ranks} ranks save its own part (torch.distributed.checkpoint), instead of rank {who} all",
        gain,
        (f"rank {who} saves {percent(spent[who] / case.window * ranks)} of its time, and the others wait for it",),
        {"writers": ranks},
    )


def _interval(case: Case) -> Found | None:
    """One failure is not a rate. With fewer than FAILURES, the shortest plausible MTBF (95 %) is assumed, and only an
    interval is advised that is longer even then."""
    found = case.goodput
    if found is None or not found.saves or not found.blocked or not found.steps:
        return None
    saving = saving_of(found)
    rate = found.interruptions >= FAILURES
    mtbf = found.watched / found.interruptions if rate else mtbf_range(found.watched, found.interruptions)[0]
    recovery = mean(found.recoveries) if found.recoveries else found.attempts[0].startup
    if not mtbf or saving.cycle <= 0 or saving.step <= 0:
        return None
    told = advise(saving, mtbf, recovery)
    best = told.recommended[-1]
    if found.rhythm is None or (not rate and best.cycle <= saving.cycle):
        return None
    steps, now = max(1, round(best.steps)), max(1, round(told.in_use.steps))

    def gain(between_failures: float) -> float:
        now, then = (
            available(cycle, between_failures, recovery, saving.blocked) for cycle in (saving.cycle, best.cycle)
        )
        return 1 - now / then

    known = [gain(min(each, _NEVER)) for each in mtbf_range(found.watched, found.interruptions)]
    worth = formula(gain(mtbf), max(0.0, min(known)), max(known))
    if best.cycle > saving.cycle:  # it saves the time of saves alone
        worth = at_most(worth, found.blocked / found.stepping)
    seen = (
        f"{counted(found.interruptions, 'failure')} in {found.watched:.0f} s"
        if found.interruptions
        else f"no failure in {found.watched:.0f} s"
    )
    return Found(
        f"Save {_every(steps)} (now {_every(now)}){_by_setting(case)}",
        worth,
        (f"{seen}; a save blocks for {saving.blocked:.2f} s, and a restart takes {recovery:.0f} s",),
        {"save_every_steps": steps},
    )


def _by_setting(case: Case) -> str:
    """The name of the setting alone: a program may count epochs, or other steps than those of the optimizer."""
    name = named(case, SAVES)
    return f": see {name.to()}" if name is not None else ""


def _every(steps: int) -> str:
    return "every step" if steps == 1 else f"every {steps} steps"


RULES: tuple[Rule, ...] = (
    Rule(
        "checkpoint.async",
        ("storage", "cpu"),
        "Saves block the loop, and none of them is asynchronous; or it saves in its own way",
        "Save asynchronously",
        "Replay with saves that block only while they copy. At most the time between saves: a save must be written"
        " before the next one. If it saves in its own way: all of that time, and nothing as the lower bound",
        "`checkpoint_write` falls to almost nothing, and so does `checkpoint_cpu` if it saves in its own way",
        _async,
        removes=("checkpoint_write", "checkpoint_cpu"),
    ),
    Rule(
        "checkpoint.sharded",
        ("storage", "cpu"),
        "One rank has four fifths of the time that all ranks spend in saves, not to a mount at its bandwidth",
        "Let each rank save its own part",
        "Replay with saves that take 1/ranks of their time. Lower bound: 0, because the storage may be the limit",
        "saves take about the same time on all ranks, and less than before",
        _sharded,
        removes=("checkpoint_write", "checkpoint_cpu"),
    ),
    Rule(
        "checkpoint.interval",
        ("storage", "cpu", "lost"),
        "The availability-optimal interval differs from the one in use, in steps between the saves that were seen. With"
        " less than two failures so far, only an interval is advised that is longer than now and optimal even for the"
        " shortest mean time between failures that is plausible (95 %)",
        "Save at the availability-optimal interval, in steps",
        "The difference in progress between both intervals ([goodput.md](goodput.md)). Bounds: the 95 % interval of the"
        " mean time between failures. A longer interval saves no more than the time of the saves",
        "`whyidle goodput` shows more progress",
        _interval,
        removes=None,
    ),
)
