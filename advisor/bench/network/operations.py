"""Collectives, their sizes and bandwidths, as nccl-tests define them. Pure functions.

algbw = size / time, and busbw = algbw × factor. For a ring, busbw does not depend on the number of ranks, so it can be
compared with the rate of a link. Source: nccl-tests, doc/PERFORMANCE.md and the function ``…GetBw`` of each operation
in its src/.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ....ledger.bus import bus_factor
from ...traffic.collectives import sent

FACTORS: dict[str, Callable[[int], float]] = {
    op: partial(bus_factor, op) for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
}
"""Operation -> a function from the number of ranks to busbw / algbw."""
OPERATIONS: tuple[str, ...] = tuple(FACTORS)
SPLIT: frozenset[str] = frozenset(("all_gather", "reduce_scatter", "all_to_all"))
"""The operations in which each rank has an equal part of the size."""

WAYS: dict[str, str] = {"gloo": "gloo", "nccl": "ring"}
"""Backend -> its algorithm, as advisor/traffic/collectives.py names it."""


def busbw(op: str, ranks: int, size: float, seconds: float) -> float:
    """The bus bandwidth of a call, in bytes/s.

    ``size`` in bytes: the data that is reduced or broadcast, the whole result of a gather, the whole input of a
    scatter, or what one rank has for all ranks in an all-to-all.
    """
    return size / seconds * FACTORS[op](ranks)


def elements(op: str, size: int, ranks: int, element: int) -> int:
    """The number of elements of a call of ``size`` bytes, rounded down to equal parts, but at least one for each rank.

    ``element``: the bytes of an element.
    """
    if op in SPLIT:
        return max(1, size // (element * ranks)) * ranks
    return max(1, size // element)


def buffer_bytes(op: str, size: int, ranks: int) -> int:
    """The bytes of one rank's buffers for a call."""
    return size + {"all_gather": size // ranks, "reduce_scatter": size // ranks, "all_to_all": size}.get(op, 0)


def ladder(first: int, last: int, factor: int) -> Iterator[int]:
    """Yields sizes from ``first`` to ``last``, each ``factor`` times the one before it. ``last`` is always included."""
    size = first
    while size < last:
        yield size
        size *= factor
    yield last


def least_seconds(backend: str, op: str, size: float, groups: Sequence[Sequence[int]], link: float) -> float:
    """The least seconds of a call, if the links of a node carry ``link`` bytes/s together. 0 if nothing leaves a node.

    ``groups``: the node of each rank, for each of the groups that make the call at the same time.
    """
    leaves: defaultdict[int, float] = defaultdict(float)
    for nodes in groups:
        members = Counter(nodes)
        moved = sent(WAYS[backend], op, size, list(members.values()))
        for node, of_node in zip(members, moved, strict=True):
            leaves[node] += of_node.across
    return max(leaves.values()) / link
