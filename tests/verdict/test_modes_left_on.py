"""Modes of torch and CUDA that were left on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from whyidle.verdict.accounts import RankAccount
from whyidle.verdict.modes import left_on, reason, sentences


def rank(number: int = 0, looks: int = 20, **modes: int) -> RankAccount:
    words = {"mode_looks": tuple(modes.get(mode, 0) for mode in ("anomaly", "profiler", "blocking"))}
    return RankAccount(cast(Any, SimpleNamespace(rank=number, words=words, base_looks=looks)))


@pytest.mark.parametrize(
    ("looks", "found", "left"), [(20, 20, True), (20, 10, True), (20, 9, False), (4, 4, False), (5, 5, True)]
)
def test_a_mode_is_left_on_if_most_looks_find_it(looks: int, found: int, left: bool) -> None:
    assert left_on([rank(looks=looks, profiler=found)]) == ({"profiler": [0]} if left else {})


@pytest.mark.parametrize(("idle", "named"), [((1.0, 3.0), True), ((3.0, 1.0), False)])
def test_a_mode_is_the_reason_if_most_idle_time_is_of_its_ranks(idle: tuple[float, float], named: bool) -> None:
    ranks = [rank(0), rank(1, profiler=20)]
    for one, gaps in zip(ranks, idle, strict=True):
        one.gaps = gaps
    assert bool(reason(ranks)) is named


def test_names_the_modes_and_the_ranks() -> None:
    ranks = [rank(0), rank(1, anomaly=20, blocking=20)]
    assert reason(ranks) == "torch's anomaly detection is on and CUDA_LAUNCH_BLOCKING is 1"
    first, second = sentences(ranks)
    assert first.startswith("rank 1: torch's anomaly detection is on: it keeps a stack")
    assert second.startswith("rank 1: CUDA_LAUNCH_BLOCKING is 1: the host waits")
    assert [*sentences(ranks[:1])] == []
