"""Bus bytes by the factors of nccl-tests (doc/PERFORMANCE.md)."""

from __future__ import annotations

import pytest

from whyidle.ledger.bus import bus_bytes, bus_factor
from whyidle.ledger.causes import COLLECTIVE_OPS

ALL = dict.fromkeys(COLLECTIVE_OPS, 1 << 20)


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send", 0.5),
        ("recv", 0.5),
    ],
)
def test_factors_of_four_ranks(op: str, factor: float) -> None:
    assert bus_factor(op, 4) == factor
    assert bus_bytes({op: 1000}, 4) == 1000 * factor


@pytest.mark.parametrize("ranks", [2, 4, 1024])
def test_operations_add_up(ranks: int) -> None:
    assert bus_bytes(ALL, ranks) == sum(size * bus_factor(op, ranks) for op, size in ALL.items())


@pytest.mark.parametrize("ranks", [0, 1])
def test_a_group_without_another_rank_sends_nothing(ranks: int) -> None:
    assert bus_bytes(ALL, ranks) == 0


def test_bytes_beyond_the_precision_of_floats_stay_exact() -> None:
    assert bus_bytes({"all_reduce": (1 << 61) + 2}, 2) == (1 << 61) + 2
