"""All rules of advice, and the advice for a run: the change that saves most comes first, but the right link before all
other changes to transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite

from ...verdict.unused import idle_ranks
from . import ahead, asides, checkpoints, data, evaluation, host, links, network, pipelines, starts, storage, stragglers
from .case import Case
from .gains import at_most
from .rule import FLOOR, Advice, Gain, Rule

RULES: tuple[Rule, ...] = (
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


def advise(case: Case, price: float = 0.0, rules: Sequence[Rule] = RULES) -> list[Advice]:
    """The changes that save at least FLOOR, in the order of `_order`. None if the run is too short to judge, or if it
    leaves its GPUs alone: these rules would only speed up the CPU.

    No change saves more than the share of the families that it reduces. A replay has only the last steps of a run, and
    the share in them may be larger.

    ``price``: the price of a GPU-hour; 0 if not known.
    """
    if case.window <= 0 or case.too_short is not None or idle_ranks(case.account):
        return []
    hours = case.window / 3600
    found = []
    for rule in rules:
        one = rule.find(case)
        if one is None or not isfinite(one.gain.share):
            continue
        gain = _bounded(case, rule, one.gain)
        if gain.share < FLOOR:
            continue
        saved = gain.share * hours
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
    return _order(found)


def _bounded(case: Case, rule: Rule, gain: Gain) -> Gain:
    """Transfers may be hidden behind compute, and ledgers do not have these: the upper bound on them stays."""
    if rule.removes is None:
        return gain
    share = case.removable(rule.families, rule.removes)
    return replace(at_most(gain, share), most=gain.most) if "network" in rule.families else at_most(gain, share)


def _order(found: Sequence[Advice]) -> list[Advice]:
    """The one that saves most GPU-hours first. Other advice on transfers comes after that on their link."""
    hours = max((one.gpu_hours for one in found if one.id in links.FIRST), default=inf)
    behind = {one.id: one.id not in links.FIRST and one.id in [rule.id for rule in network.RULES] for one in found}
    return sorted(found, key=lambda one: (-min(one.gpu_hours, hours if behind[one.id] else inf), behind[one.id]))
