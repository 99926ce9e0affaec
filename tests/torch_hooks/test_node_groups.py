"""The order in which the stages of several blocks begin: every member must use a gloo group in the same order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from whyidle.torch_hooks.exchange.node_groups import Staged


class Operation:
    """One operation of a gloo group, which is over when its thread says so."""

    def __init__(self, name: str, begun: list[str]):
        self.over = False
        self.error: Exception | None = None
        begun.append(name)

    def is_completed(self) -> bool:
        return self.over


def finished(operation: Operation) -> None:
    if operation.error is not None:
        raise operation.error


class Blocks:
    """Some blocks in flight, each with the stages of a leader."""

    def __init__(self, count: int):
        self.begun: list[str] = []
        self.operations: list[Operation] = []
        self.works = [
            Staged([self.stage(f"{stage}{number}") for stage in "uld"], self.advance) for number in range(count)
        ]

    def stage(self, name: str) -> Any:
        def begin() -> Operation:
            self.operations.append(Operation(name, self.begun))
            return self.operations[-1]

        return begin

    def advance(self) -> None:
        most = None
        for work in self.works:
            work.advance(most, finished)  # type: ignore[arg-type]
            most = work.begun


@pytest.mark.parametrize("seed", range(20))
def test_operations_of_a_group_begin_in_the_order_of_the_blocks(seed: int) -> None:
    chance = random.Random(seed)
    blocks = Blocks(4)
    while not all(work.is_completed() for work in blocks.works):
        running = [operation for operation in blocks.operations if not operation.over]
        chance.choice(running).over = True
    for group in "uld":
        assert [name for name in blocks.begun if name[0] == group] == [f"{group}{number}" for number in range(4)]
    for work in blocks.works:
        work.wait()


def test_the_error_of_a_stage_is_that_of_the_block() -> None:
    blocks = Blocks(1)
    (work,) = blocks.works
    assert not work.is_completed()
    (first,) = blocks.operations
    first.over, first.error = True, RuntimeError("connection closed by peer")
    assert work.is_completed()
    assert blocks.begun == ["u0"], "no stage begins after a failure"
    with pytest.raises(RuntimeError, match="connection closed"):
        work.wait()
