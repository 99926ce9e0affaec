"""Bytes that ranks send for one collective, inside a node and across nodes, by how it is carried out. Pure functions.

Sizes follow nccl-tests: what is reduced, all that was gathered, all that is scattered, what a rank sends to all others.
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
"""How collectives are carried out -> in words."""


class Sent(NamedTuple):
    """Bytes that the ranks of one node send."""

    inside: float
    """To ranks of the same node."""
    across: float
    """To ranks of other nodes."""


def ring(size: float, members: Sequence[int]) -> list[Sent]:
    """Every rank sends ``size`` to the next one. A ring enters and leaves each node once: NCCL orders it so."""
    if len(members) == 1:
        return [Sent(members[0] * size, 0.0)]
    return [Sent((ranks - 1) * size, size) for ranks in members]


def chain(size: float, members: Sequence[int]) -> list[Sent]:
    """A ring that is open at one end, as for a broadcast: the last rank sends nothing."""
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
    """A broadcast in which all that have the data send it on, so that twice as many have it each time.

    Source: gloo, broadcast.cc. The first rank sends log2 of the number of ranks times.
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

    Each tree takes half of the data up and down. All edges together carry 2 (n − 1) × ``size``, as a ring's do. The
    share of a node is a mean: one in the middle of a tree sends up to 2 × ``size`` across nodes.
    Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009, as
    NCCL has it since 2.4.
    """
    nodes = len(members)
    return [Sent(2 * (ranks - 1) * size, 2 * size * (nodes - 1) / nodes) for ranks in members]


def _all_reduce_ring(size: float, members: Sequence[int]) -> list[Sent]:
    """2 (n − 1) / n × size a rank. Source: nccl-tests, doc/PERFORMANCE.md."""
    n = sum(members)
    return ring(2 * size * (n - 1) / n, members)


def _part_ring(size: float, members: Sequence[int]) -> list[Sent]:
    """All-gather and reduce-scatter: (n − 1) / n × size a rank. Source: nccl-tests, doc/PERFORMANCE.md."""
    n = sum(members)
    return ring(size * (n - 1) / n, members)


def _part_pairs(size: float, members: Sequence[int]) -> list[Sent]:
    """Each rank sends its n-th part to each other: (n − 1) / n × size a rank. Source: nccl-tests, doc/PERFORMANCE.md,
    for all-to-all."""
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
    # ProcessGroupGloo has no reduce-scatter: it reduces all on all ranks, and each keeps its part.
    "gloo": {**_NCCL, "reduce_scatter": _all_reduce_ring, "broadcast": doubling},
}
OPS: tuple[str, ...] = tuple(_NCCL)
"""Collectives whose bytes are known."""


def sent(way: str, op: str, size: float, members: Sequence[int]) -> list[Sent]:
    """What each node sends for one collective of ``size`` bytes.

    ``members``: how many ranks of the group each node has. Raises KeyError for an operation that is not in OPS.
    """
    if sum(members) < 2:
        return [Sent(0.0, 0.0)] * len(members)
    return _OF[way][op](size, members)
