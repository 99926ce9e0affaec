"""Predicts the bytes that a step moves: the collectives of a shape, with its ranks placed on nodes. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

from .collectives import Sent, sent
from .shape import FORWARD, Calls, Model, Parallel, ShapeError, calls

TOKEN_BYTES = 4.0


@dataclass(frozen=True)
class Row:
    """All collectives of one kind in a step. Bytes, summed over all ranks."""

    calls: Calls
    inside: float
    across: float

    @property
    def total(self) -> float:
        return self.inside + self.across


@dataclass(frozen=True)
class Prediction:
    """The bytes that a step moves."""

    rows: list[Row]
    ranks: int
    gpus_per_node: int
    node_inside: float
    """The bytes per step that ranks of one node send to each other, on the busiest node."""
    node_across: float
    """The bytes per step that a node sends to others, on the busiest node."""

    @property
    def total(self) -> float:
        return sum(row.total for row in self.rows)

    @property
    def inside(self) -> float:
        return sum(row.inside for row in self.rows)

    @property
    def across(self) -> float:
        return sum(row.across for row in self.rows)

    def seconds(self, link: float, links: int, inside_link: float = 0.0) -> float:
        """The least time in which the busiest node can move the bytes of a step.

        ``link``: bytes/s of one of the node's ``links`` links to other nodes, each way. ``inside_link``: bytes/s
        between a GPU and the others of its node, each way; 0 means no limit. Both kinds of links work at the same time.
        """
        return max(
            self.node_across / (link * links),
            self.node_inside / (inside_link * self.gpus_per_node) if inside_link else 0.0,
        )

    def link_for(self, step_seconds: float, links: int) -> float:
        """The bytes/s that each of a node's links needs, so that compute can hide everything that leaves the node."""
        return self.node_across / links / step_seconds


@dataclass(frozen=True)
class Storage:
    """The bytes between GPUs and storage, summed over ranks."""

    read: float
    """Training data, per step."""
    save: float
    """One checkpoint."""
    save_every: float
    """The steps between two checkpoints; 0 means never."""

    @property
    def written(self) -> float:
        """The bytes of checkpoints per step, on average."""
        return self.save / self.save_every if self.save_every else 0.0


def predict(model: Model, parallel: Parallel, gpus_per_node: int, way: str) -> Prediction:
    """The traffic of a step. ``way``: see collectives.py. Raises ShapeError."""
    made = list(calls(model, parallel))
    if gpus_per_node < 1:
        raise ShapeError("a node must have at least one GPU: see --gpus-per-node")
    inside: defaultdict[int, float] = defaultdict(float)
    across: defaultdict[int, float] = defaultdict(float)
    rows = []
    for one in made:
        total = [0.0, 0.0]
        for nodes in _groups(one, parallel.world, gpus_per_node):
            for node, moved in _moved(one, nodes, way):
                inside[node] += moved.inside * one.times
                across[node] += moved.across * one.times
                total[0] += moved.inside * one.times
                total[1] += moved.across * one.times
        rows.append(Row(one, *total))
    busiest = [max(counted.values(), default=0.0) for counted in (inside, across)]
    return Prediction(rows, parallel.world, min(gpus_per_node, parallel.world), *busiest)


def _groups(one: Calls, world: int, gpus_per_node: int) -> Iterator[list[int]]:
    """Yields, for each group of a dimension, the nodes of its ranks in the order of the ranks."""
    for block in range(0, world, one.group * one.stride):
        for first in range(block, block + one.stride):
            yield [rank // gpus_per_node for rank in range(first, first + one.group * one.stride, one.stride)]


def _moved(one: Calls, nodes: list[int], way: str) -> Iterable[tuple[int, Sent]]:
    if one.op == "send":
        return _messages(one, nodes)
    members = [(node, len(list(ranks))) for node, ranks in groupby(nodes)]
    of_nodes = sent(way, one.op, one.size, [count for _, count in members])
    return zip((node for node, _ in members), of_nodes, strict=True)


def _messages(one: Calls, nodes: list[int]) -> Iterator[tuple[int, Sent]]:
    """Each stage sends to the next one, or in the backward pass to the previous one."""
    for stage, following in pairwise(nodes):
        source, target = (stage, following) if one.moment == FORWARD else (following, stage)
        yield source, Sent(one.size, 0.0) if source == target else Sent(0.0, one.size)


def storage(model: Model, save_every: float, token_bytes: float, checkpoint_bytes: float) -> Storage:
    """The traffic to storage. Each token is read once per epoch. A checkpoint has each parameter once, whichever ranks
    write it."""
    return Storage(model.tokens / model.batches * token_bytes, model.parameters * checkpoint_bytes, save_every)
