"""All rules of advice, and the advice for a run: the change that saves most comes first, but the right link before all
other changes to transfers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

from . import checkpoints, data, host, links, network, pipelines, storage, stragglers
from .case import Case
from .rule import FLOOR, Advice, Rule

RULES: tuple[Rule, ...] = (
    *data.RULES,
    *storage.RULES,
    *links.RULES,
    *network.RULES,
    *stragglers.RULES,
    *pipelines.RULES,
    *checkpoints.RULES,
    *host.RULES,
)
LEAST_STEPS = 10
"""A run with fewer steps gets no advice."""


def advise(case: Case, price: float = 0.0, rules: Sequence[Rule] = RULES) -> list[Advice]:
    """The changes that save at least FLOOR, in the order of `_order`.

    ``price``: the price of a GPU-hour; 0 if not known.
    """
    if case.window <= 0 or max((rank.steps for rank in case.ranks), default=0) < LEAST_STEPS:
        return []
    hours = case.window / 3600
    found = []
    for rule in rules:
        one = rule.find(case)
        if one is None or not isfinite(one.gain.share) or one.gain.share < FLOOR:
            continue
        saved = one.gain.share * hours
        found.append(
            Advice(
                rule.id,
                rule.families,
                one.change,
                one.settings,
                one.gain,
                saved,
                saved * price if price else None,
                one.evidence,
                rule.check,
                rule.tried,
            )
        )
    return _order(found)


def _order(found: Sequence[Advice]) -> list[Advice]:
    """The one that saves most GPU-hours first. Other advice on transfers comes after that on their link."""
    hours = max((one.gpu_hours for one in found if one.id in links.FIRST), default=inf)
    behind = {one.id: one.id not in links.FIRST and one.id in [rule.id for rule in network.RULES] for one in found}
    return sorted(found, key=lambda one: (-min(one.gpu_hours, hours if behind[one.id] else inf), behind[one.id]))
