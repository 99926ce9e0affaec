"""Bus bytes: what a rank of a group sends over its link for a collective. Pure functions.

Divided by time, they are the bus bandwidth of nccl-tests (busbw). Its algorithm moves the bytes around a ring, so the
result can be compared with the rate of a link, however many ranks the group has. Source: nccl-tests,
doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Mapping

PASSES: dict[str, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Operation -> how often its bytes go around a ring. In each pass, a rank sends all parts but one."""
MESSAGES: frozenset[str] = frozenset(("send", "recv"))
"""The operations of messages. A ledger counts a message at both ends, but only one of them sends it."""


def bus_factor(op: str, ranks: int) -> float:
    """Bus bytes per byte of an operation. ``ranks``: the size of the group."""
    if op in MESSAGES:
        return 0.5
    return PASSES[op] * (ranks - 1) / ranks if op in PASSES else 1.0


def bus_bytes(handed: Mapping[str, int], ranks: int) -> int:
    """The bus bytes of a rank in one group. ``handed``: operation -> bytes, as in a ledger.

    0 in a group of a single rank, and in a group of unknown size (0).
    """
    if ranks < 2:
        return 0
    around = messages = other = 0
    for op, size in handed.items():
        if passes := PASSES.get(op):
            around += passes * size
        elif op in MESSAGES:
            messages += size
        else:
            other += size
    return around * (ranks - 1) // ranks + messages // 2 + other
