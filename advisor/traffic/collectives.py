"""The bytes that ranks send for one collective, inside a node and across nodes, by algorithm. Pure functions.

Sizes are defined as in nccl-tests: the bytes that are reduced, the whole result of a gather, the whole input of a
scatter, or what one rank has for all ranks in an all-to-all. ``members``: the number of the group's ranks on each node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

WAYS: dict[str, str] = {
    "ring": "as NCCL moves them, in rings",
    "tree": "as NCCL moves them, all-reduces in trees",
    "mesh": "full mesh: each rank sends to each",
    "gloo": "as gloo moves them",
}
"""Algorithm of collectives -> its description."""


class Sent(NamedTuple):
    """The bytes that the ranks of one node send."""

    inside: float
    """To ranks of the same node."""
    across: float
    """To ranks of other nodes."""


def ring(size: float, members: Sequence[int]) -> list[Sent]:
    """Every rank sends ``size`` to the next one. NCCL orders a ring so that it enters and leaves each node once."""
    if len(members) == 1:
        return [Sent(members[0] * size, 0.0)]
    return [Sent((ranks - 1) * size, size) for ranks in members]


def chain(size: float, members: Sequence[int]) -> list[Sent]:
    """A ring that is open at one end, as for a broadcast. The last rank sends nothing."""
    last = len(members) - 1
    return [Sent((ranks - 1) * size, size if node < last else 0.0) for node, ranks in enumerate(members)]


def pairs(size: float, members: Sequence[int]) -> list[Sent]:
    """Every rank sends ``size`` to every other."""
    whole = sum(members)
    return [Sent(ranks * (ranks - 1) * size, ranks * (whole - ranks) * size) for ranks in members]


def star(size: float, members: Sequence[int]) -> list[Sent]:
    """The first rank sends ``size`` to every other."""
    rest = [Sent(0.0, 0.0)] * (len(members) - 1)
    return [Sent((members[0] - 1) * size, sum(members[1:]) * size), *rest]


def doubling(size: float, members: Sequence[int]) -> list[Sent]:
    """A broadcast in rounds: every rank that has the data sends it to one more, so their number doubles in each round.

    The first rank sends log2 (number of ranks) times. Source: gloo, broadcast.cc.
    """
    node_of = [node for node, ranks in enumerate(members) for _ in range(ranks)]
    inside, across = ([0.0] * len(members) for _ in range(2))
    have = 1
    while have < len(node_of):
        for source, target in zip(range(have), range(have, len(node_of)), strict=False):
            here = node_of[source]
            (inside if here == node_of[target] else across)[here] += size
        have *= 2
    return [Sent(*of_node) for of_node in zip(inside, across, strict=True)]


def trees(size: float, members: Sequence[int]) -> list[Sent]:
    """An all-reduce in NCCL's double binary tree over the nodes, with a chain of ranks inside each node.

    Each tree carries half of the data up and down. All edges together carry 2 (n − 1) × ``size``, as those of a ring
    do. The result of a node is a mean: a node in the middle of a tree sends up to 2 × ``size`` to other nodes. Source:
    Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009. NCCL uses it
    since 2.4.
    """
    nodes = len(members)
    return [Sent(2 * (ranks - 1) * size, 2 * size * (nodes - 1) / nodes) for ranks in members]


def _all_reduce_ring(size: float, members: Sequence[int]) -> list[Sent]:
    """Each rank sends 2 (n − 1) / n × size. Source: nccl-tests, doc/PERFORMANCE.md."""
    n = sum(members)
    return ring(2 * size * (n - 1) / n, members)


def _part_ring(size: float, members: Sequence[int]) -> list[Sent]:
    """All-gather and reduce-scatter: each rank sends (n − 1) / n × size. Source: nccl-tests, doc/PERFORMANCE.md."""
    n = sum(members)
    return ring(size * (n - 1) / n, members)


def _part_pairs(size: float, members: Sequence[int]) -> list[Sent]:
    """Each rank sends one n-th of the size to each other rank: (n − 1) / n × size. Source: nccl-tests,
    doc/PERFORMANCE.md, for all-to-all."""
    return pairs(size / sum(members), members)


Way = Callable[[float, Sequence[int]], list[Sent]]
_NCCL: dict[str, Way] = {
    "all_reduce": _all_reduce_ring,
    "all_gather": _part_ring,
    "reduce_scatter": _part_ring,
    "all_to_all": _part_pairs,
    "broadcast": chain,
    "reduce": chain,
}
_OF: dict[str, dict[str, Way]] = {
    "ring": _NCCL,
    "tree": {**_NCCL, "all_reduce": trees},  # NCCL has trees for all-reduce alone
    "mesh": {
        **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), _part_pairs),
        "all_reduce": pairs,
        **dict.fromkeys(("broadcast", "reduce"), star),
    },
    # ProcessGroupGloo has no reduce-scatter: it makes an all-reduce, and each rank keeps its part.
    "gloo": {**_NCCL, "reduce_scatter": _all_reduce_ring, "broadcast": doubling},
}
OPS: tuple[str, ...] = tuple(_NCCL)
"""The collectives with known formulas."""


def sent(way: str, op: str, size: float, members: Sequence[int]) -> list[Sent]:
    """What each node sends for one collective of ``size`` bytes.

    ``members``: the number of the group's ranks on each node. Raises KeyError for an operation that is not in OPS.
    """
    if sum(members) < 2:
        return [Sent(0.0, 0.0)] * len(members)
    return _OF[way][op](size, members)
