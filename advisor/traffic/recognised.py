"""Recognises the parallelism of a run by the groups in its ledgers, and compares it with the formulas. Pure
functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ...ledger.dimensions import dimension_named
from .measured import Group
from .shape import Model, Parallel, calls


class NotRecognised(Exception):
    """The groups do not show the shape. The message says which options to give."""


@dataclass(frozen=True)
class Compared:
    """The bytes that a rank passes to one kind of collective per step."""

    label: str
    op: str
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """(predicted − measured) / measured; 0 if nothing was measured."""
        return self.predicted / self.measured - 1 if self.measured else 0.0


def shape_of(groups: Sequence[Group], world_size: int) -> tuple[Parallel, dict[str, str]]:
    """Returns the shape, and the dimension of each label. Raises NotRecognised.

    The world counts as a dimension only if there are no other groups. Otherwise it carries a norm or a loss.
    """
    world = [group for group in groups if group.label == "world"]
    for listed in ([group for group in groups if group.label != "world"], world):
        sizes = {dimension_of(group): group.size for group in listed}
        ranks = prod(size for dimension, size in sizes.items() if dimension != "expert")
        if listed and ranks == world_size and len(sizes) == len(listed):
            return replace(Parallel(), **sizes), {group.label: dimension_of(group) for group in listed}
    named = ", ".join(f"{group.label} ({group.size} ranks)" for group in groups) or "none"
    raise NotRecognised(
        f"the groups do not show the shape of this run's {world_size} ranks: {named}. Give it with --dp, --fsdp, …"
    )


def dimension_of(group: Group) -> str:
    """The dimension of a group, by the name of its mesh dimension, or else by its collectives."""
    if group.pairwise:
        return "pipeline"
    if named := dimension_named(group.label):
        return named
    if "reduce_scatter" in group.handed:
        return "shard"
    return "expert" if "all_to_all" in group.handed else "data"


def compare(model: Model, parallel: Parallel, groups: Sequence[Group], labels: Mapping[str, str]) -> list[Compared]:
    """Compares the bytes that a rank passes to its collectives with the formulas. Raises ShapeError."""
    predicted: defaultdict[tuple[str, str], float] = defaultdict(float)
    for one in calls(model, parallel):
        # In a pipeline, each boundary between stages has one sender, and there is one boundary fewer than stages.
        share = (one.group - 1) / one.group if one.op == "send" else 1.0
        predicted[one.dimension, one.op] += one.size * one.times * share
    found = []
    for group in groups:
        dimension = labels.get(group.label, "")
        for op, size in group.handed.items():
            if op != "recv" and (dimension, op) in predicted:
                found.append(Compared(group.label, op, predicted[dimension, op], size))
    return found
