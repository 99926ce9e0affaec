"""All rules of advice, and the advice for a run: the change that saves most comes first, but what is cheapest before
other changes that remove the same time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, isfinite

from ...verdict import failures, out_of_memory
from ...verdict.standing import standing_seconds
from ...verdict.unused import idle_ranks
from . import (
    ahead,
    asides,
    checkpoints,
    data,
    evaluation,
    given,
    host,
    links,
    network,
    pipelines,
    starts,
    storage,
    stragglers,
)
from .case import Case
from .gains import at_most
from .rule import FLOOR, Advice, Gain, Rule

RULES: tuple[Rule, ...] = (
    *given.RULES,
    *data.RULES,
    *starts.RULES,
    *ahead.RULES,
    *storage.RULES,
    *links.RULES,
    *network.RULES,
    *stragglers.RULES,
    *pipelines.RULES,
    *checkpoints.RULES,
    *evaluation.RULES,
    *host.RULES,
    *asides.RULES,
)

_BEFORE = (
    (links.FIRST, [rule.id for rule in network.RULES]),
    (given.FIRST, [rule.id for rule in (*data.RULES, *ahead.RULES)]),
)
"""The first ones come before the others: the right link before other changes to transfers, and enough CPUs before
samples are decoded in advance."""
_FOR_HOSTS = given.CPUS, ("host.launch",)
"""The same if hosts queue for a CPU: enough CPUs before kernels are launched at once."""

_NEED_MEMORY = {rule.id for rule in (*data.RULES, *starts.RULES, *ahead.RULES)} | {"host.blocked"}
"""Data workers, and what they prepare, need memory. A run whose memory ran out has none to give."""


def advise(case: Case, price: float = 0.0, rules: Sequence[Rule] = RULES) -> list[Advice]:
    """The changes that save at least FLOOR, in the order of `_order`. None if the run is too short to judge, or if it
    leaves its GPUs alone: these rules would only speed up the CPU. None if it stands still: see `_stands_still`. A run
    whose memory ran out hears nothing about data workers, which need memory.

    No change saves more than the share of the families that it reduces. A replay has only the last steps of a run, and
    the share in them may be larger.

    ``price``: the price of a GPU-hour; 0 if not known.
    """
    if case.window <= 0 or case.too_short is not None or idle_ranks(case.account) or _stands_still(case):
        return []
    hours = case.window / 3600
    found = []
    full = any(
        out_of_memory.has_run_out(rank.newest) or failures.reason(rank.newest) == "memory" for rank in case.ranks
    )
    for rule in rules:
        if full and rule.id in _NEED_MEMORY:
            continue
        one = rule.find(case)
        if one is None or not isfinite(one.gain.share):
            continue
        gain = _bounded(case, rule, one.gain)
        gain = replace(gain, most=min(1.0, gain.most + one.besides))
        if gain.share < FLOOR:
            continue
        saved = gain.expected * hours
        found.append(
            Advice(
                rule.id,
                rule.families,
                one.change,
                one.settings,
                gain,
                saved,
                saved * price if price else None,
                one.evidence,
                rule.check,
                rule.tried,
            )
        )
    return _order(found, (*_BEFORE, _FOR_HOSTS) if given.hosts_queue(case) else _BEFORE)


def _stands_still(case: Case) -> bool:
    """Whether a step that does not end has at least half of all time other than compute: it hangs, and is not slow."""
    standing = sum(standing_seconds(rank.newest, case.account.now_ns) for rank in case.ranks)
    return standing > 0 and 2 * standing >= sum(case.charged.values()) - case.charged["compute"]


def _bounded(case: Case, rule: Rule, gain: Gain) -> Gain:
    """Transfers may be hidden behind compute, and ledgers do not have these: the upper bound on them stays."""
    if rule.removes is None:
        return at_most(gain, 1.0)
    share = case.removable(rule.families, rule.removes)
    return replace(at_most(gain, share), most=gain.most) if "network" in rule.families else at_most(gain, share)


def _order(found: Sequence[Advice], before: Iterable[tuple[Sequence[str], Sequence[str]]]) -> list[Advice]:
    """The one that saves most GPU-hours first. But what is cheapest comes before other advice on the same time."""
    limits = {one.id: inf for one in found}
    for ids, later in before:
        first = max((one for one in found if one.id in ids), key=lambda one: one.gpu_hours, default=None)
        behind = {*later} - {*ids} if first is not None else set[str]()
        limits |= dict.fromkeys(behind, first.gpu_hours if first is not None else inf)
        said = f"`{first.id}` comes first: it removes a part of the same time" if first is not None else ""
        found = [replace(one, evidence=(*one.evidence, said)) if one.id in behind else one for one in found]
    return sorted(found, key=lambda one: (-min(one.gpu_hours, limits[one.id]), limits[one.id] < inf))
