"""Which parallelism a run has, by the groups in its ledgers, and how the formulas compare. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from .measured import Group
from .shape import Model, Parallel, calls

DIMENSIONS: dict[str, str] = {
    **dict.fromkeys(("dp", "ddp", "data", "replicate", "dp_replicate"), "data"),
    **dict.fromkeys(("fsdp", "shard", "dp_shard", "dp_shard_cp"), "shard"),
    **dict.fromkeys(("tp", "tensor", "model"), "tensor"),
    **dict.fromkeys(("sp", "cp", "ulysses"), "sequence"),
    **dict.fromkeys(("ep", "expert"), "expert"),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage"), "pipeline"),
}
"""Name of a mesh dimension, as PyTorch's examples, torchtitan and DeepSpeed have them -> dimension."""


class NotRecognised(Exception):
    """The shape cannot be told from the groups; the message says what to give."""


@dataclass(frozen=True)
class Compared:
    """Bytes that a rank hands to one kind of collective in a step."""

    label: str
    op: str
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """By how much the prediction is more than what was measured; a share of what was measured."""
        return self.predicted / self.measured - 1 if self.measured else 0.0


def shape_of(groups: Sequence[Group], world_size: int) -> tuple[Parallel, dict[str, str]]:
    """-> the shape, and the dimension of each label.

    The world is a dimension where there are no others: else what it carries is a norm or a loss. Raises NotRecognised.
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
    """By the name of the mesh dimension, else by what its ranks do."""
    name = group.label.removesuffix(" p2p")
    if group.pairwise:
        return "pipeline"
    if name in DIMENSIONS:
        return DIMENSIONS[name]
    if "reduce_scatter" in group.handed:
        return "shard"
    return "expert" if "all_to_all" in group.handed else "data"


def compare(model: Model, parallel: Parallel, groups: Sequence[Group], labels: Mapping[str, str]) -> list[Compared]:
    """What the formulas say that a rank hands to its collectives, beside what it did. Raises ShapeError."""
    predicted: defaultdict[tuple[str, str], float] = defaultdict(float)
    for one in calls(model, parallel):
        # Of a pipeline's messages each boundary has one sender, and there is one boundary less than stages.
        share = (one.group - 1) / one.group if one.op == "send" else 1.0
        predicted[one.dimension, one.op] += one.size * one.times * share
    found = []
    for group in groups:
        dimension = labels.get(group.label, "")
        for op, size in group.handed.items():
            if op != "recv" and (dimension, op) in predicted:
                found.append(Compared(group.label, op, predicted[dimension, op], size))
    return found
