"""The exchange of one group: issues blocks of steps, and settles those that came back. On the training thread only."""

from __future__ import annotations

import datetime
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ledger.waits import BlockMismatch, Settled, StepWaits, pack, split, width_for, words_of
from ..groups import Group

if TYPE_CHECKING:
    from ..machine import PhaseMachine

BLOCK_STEPS = (8, 16, 32, 64, 128, 256)
"""How many steps a block may have. The first blocks have the least."""
BLOCK_NS = 500_000_000
"""A block is so long that it takes about this time: each exchange wakes threads, which on busy cores is felt."""
LARGE_GROUP = 256
LARGE_BLOCK_NS = 2_000_000_000
"""The same, of more ranks than that: the smallest all-reduce is a ring of 2 (n - 1) hops, 0.1 s at 1,024 ranks."""
FIRST_WIDTH = 8
"""Words for the calls of a step in the first blocks; later ones know how many calls there are."""
MOST_HELD = 1 << 17
"""Numbers that the steps of one group may hold in memory while they await their split."""
LONGEST_EXCHANGE_SECONDS = 120.0
"""When an exchange takes longer than this, while steps go on, some rank no longer takes part."""
_IN_FLIGHT = 2


class Shape(NamedTuple):
    """Of a block: the same on all members."""

    length: int
    width: int


class _Block(NamedTuple):
    steps: list[StepWaits]
    shape: Shape
    words: array[int]
    tensor: Any
    work: Any
    issued: float


class Lost(Exception):
    """This group cannot be split any more. Its text says why."""


def block_length(step_ns: int, ranks: int) -> int:
    """How many steps the block after the next has, by the step time of the slowest rank: the same on all of them."""
    wanted = (LARGE_BLOCK_NS if ranks > LARGE_GROUP else BLOCK_NS) // max(step_ns, 1)
    return next((length for length in BLOCK_STEPS if length >= wanted), BLOCK_STEPS[-1])


class SlotExchange:
    """Settles the waits of one group; until `begin` they are only held back."""

    def __init__(self, machine: PhaseMachine, group: Group, rank: int, finished: Callable[[Any], None]):
        self.group = group
        self._machine = machine
        self._rank = rank
        self._finished = finished  # raises what an operation failed with
        self._side: Any = None
        self._from = 0
        self._inflight: deque[_Block] = deque()
        self._shapes = deque([Shape(BLOCK_STEPS[0], FIRST_WIDTH)] * _IN_FLIGHT)
        """Of the next blocks; each told by a block that every rank has settled before it issues the one in question."""

    @property
    def begun(self) -> bool:
        return self._side is not None

    def begin(self, side: Any, first_step: int) -> None:
        """``side`` is the group to exchange over; ``first_step`` the first one whose waits all members hold."""
        self._side = side
        self._from = first_step

    def poll(self) -> None:
        """Issues full blocks and settles finished ones. Raises Lost."""
        held = self._machine.books.held[self.group.slot]
        if held is None:
            return
        if self._side is None:
            if held.size > MOST_HELD:
                raise Lost("its members do not come together")
        elif not self._shapes or len(held.steps) >= self._shapes[0].length:
            self._advance(held.steps)
            if held.size > 2 * MOST_HELD:
                raise Lost("a rank stopped taking part")

    def _advance(self, steps: deque[StepWaits]) -> None:
        while self._inflight and self._inflight[0].work.is_completed():
            self._settle(self._inflight.popleft())
        self._drop_early(steps)
        while self._shapes and len(steps) >= self._shapes[0].length:
            shape = self._shapes.popleft()
            self._issue(shape, [steps.popleft() for _ in range(shape.length)])
        if self._inflight and time.monotonic() - self._inflight[0].issued > LONGEST_EXCHANGE_SECONDS:
            raise Lost("a rank stopped taking part")

    def _drop_early(self, steps: deque[StepWaits]) -> None:
        """Steps that not all members have held back stay unsplit."""
        early = 0
        through = 0
        while steps and steps[0].number < self._from:
            step = steps.popleft()
            early += self._let_go(step)
            through = step.number
        if through:
            self._machine.update(self._machine.books.settle, self.group.slot, {"unsplit": early}, through)

    def _let_go(self, step: StepWaits) -> int:
        held = self._machine.books.held[self.group.slot]
        if held is not None:
            held.size -= step.size
        return step.total

    def _issue(self, shape: Shape, steps: list[StepWaits]) -> None:
        torch, distributed = sys.modules["torch"], sys.modules["torch.distributed"]
        words = array("q", bytes(8 * words_of(*shape)))
        pack(words, self._rank, steps, *shape)
        tensor = torch.frombuffer(words, dtype=torch.int64)
        options = distributed.AllreduceOptions()
        options.reduceOp = distributed.ReduceOp.MIN
        options.timeout = datetime.timedelta(days=1)  # a rank may write a checkpoint for longer than the default
        work = self._side.allreduce([tensor], options)
        self._inflight.append(_Block(steps, shape, words, tensor, work, time.monotonic()))

    def _settle(self, block: _Block) -> None:
        self._finished(block.work)
        try:
            settled = split(
                block.words,
                self._rank,
                self.group.ranks,
                block.steps,
                block.shape.width,
                accelerator=self._machine.device is not None,
            )
        except BlockMismatch as error:
            raise Lost(str(error)) from error
        for step in block.steps:
            self._let_go(step)
        self._shapes.append(Shape(block_length(settled.step_ns, len(self.group.ranks)), width_for(settled.most_calls)))
        self._machine.update(self._enter, settled)

    def _enter(self, settled: Settled) -> None:
        books, slot = self._machine.books, self.group.slot
        parts = {"network": settled.network, "straggler": settled.straggler, "unsplit": settled.unsplit}
        books.settle(slot, parts, settled.through)
        if settled.behind:
            books.blame(slot, settled.behind)
        if settled.late_steps:
            books.late(slot, settled.late_own, settled.late_elsewhere, settled.late_steps)

    # -- the end

    def finish(self) -> bool:
        """Issues what is left and settles what has come back; -> whether everything is settled. Raises Lost."""
        held = self._machine.books.held[self.group.slot]
        if held is None or self._side is None:
            return True
        while self._inflight and self._inflight[0].work.is_completed():
            self._settle(self._inflight.popleft())
        steps = held.steps
        self._drop_early(steps)
        while self._shapes and steps:
            shape = self._shapes.popleft()
            self._issue(shape, [steps.popleft() for _ in range(min(shape.length, len(steps)))])
        return not self._inflight and not steps
