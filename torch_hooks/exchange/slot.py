"""The exchange of one group: issues blocks of steps and settles those that came back. For the training thread only."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ledger.layout import WORD_AT
from ...ledger.messages import (
    Stages,
    clock_word,
    links_of,
    pack_stages,
    pack_times,
    split_stages,
    stages_of,
    stages_words,
    times_words,
    transfers,
)
from ...ledger.replay import capacity_of, first_capacity, replayed, sequence_words, steps_to_replay
from ...ledger.waits import NOTHING, BlockMismatch, Settled, StepWaits, pack, split, width_for, words_of
from ..groups import Group
from .mixes import ROUNDS, Mixes, OpenBlock, open_block
from .operations import Lost, Operation, Operations

if TYPE_CHECKING:
    from ..held import Held
    from ..machine import PhaseMachine

BLOCK_STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""How many steps a block may have. The first blocks have one."""
BLOCK_NS = 400_000_000
"""The least time that the steps of a block take. Each exchange wakes threads, which is noticeable on busy cores. But
live metrics have a wait only some blocks later, so blocks are no longer than necessary."""
MESSAGES_BLOCK_STEPS = 8
MESSAGES_BLOCK_NS = 4_000_000_000
"""If ranks send to each other, a block has at least MESSAGES_BLOCK_STEPS steps, because the times of a link are those
of all messages of a block, and some steps of each block are replayed. If they take longer than MESSAGES_BLOCK_NS, it
has fewer."""
LARGE_GROUP = 256
LARGE_BLOCK_NS = 2_000_000_000
"""The least time per block for more than LARGE_GROUP ranks. Even the smallest all-reduce is a ring of 2 (n - 1) hops,
which takes 0.1 s with 1,024 ranks."""
HOP_NS = 1_000_000
"""Each rank passes on one message per hop. It should pass on at most one in this time, in groups of any size."""
FIRST_WIDTH = 8
"""Words for the calls of a step in the first blocks. For later blocks, the number of calls is known."""
MOST_HELD = 1 << 17
"""The most memory that the pending steps of one group may take, as a count of numbers."""
_IN_FLIGHT = 2
_BUBBLE_AT = WORD_AT["bubble_ns"][0]


class Shape(NamedTuple):
    """The shape of a block, the same on all members."""

    length: int
    width: int


def block_length(step_ns: int, ranks: int) -> int:
    """How many steps a later block has, given the mean step time of the slowest rank. The same on all ranks."""
    block_ns = max(LARGE_BLOCK_NS, 2 * (ranks - 1) * HOP_NS) if ranks > LARGE_GROUP else BLOCK_NS
    return _steps_for(block_ns, step_ns)


def messages_block_length(step_ns: int, ranks: int) -> int:
    """The same for a group whose ranks send to each other."""
    return max(block_length(step_ns, ranks), min(MESSAGES_BLOCK_STEPS, _steps_for(MESSAGES_BLOCK_NS, step_ns)))


def _steps_for(block_ns: int, step_ns: int) -> int:
    return next((length for length in BLOCK_STEPS if length * step_ns >= block_ns), BLOCK_STEPS[-1])


class SlotExchange:
    """Settles the waits of one group of ranks. Before `begin`, it only keeps them pending. Base class."""

    lag = 1
    """When block n is issued, all ranks have settled block n - lag."""

    def __init__(self, machine: PhaseMachine, group: Group, rank: int, finished: Callable[[Any], None], mixes: Mixes):
        self.group = group
        self._machine = machine
        self._rank = rank
        self._finished = finished  # raises the error of a failed operation
        self._mixes = mixes
        self._side: Operations | None = None
        self._from = 0
        self._reach = len(group.ranks)
        self._issued = self._settled = 0  # numbers of blocks
        # Settled blocks, by number, whose waits for late ranks are not charged yet.
        self._open: dict[int, OpenBlock] = {}

    def begin(self, side: Any, first_step: int, reach: int) -> None:
        """``side``: the gloo group to use. ``first_step``: the first step whose waits all members keep pending.

        ``reach``: the number of ranks that an operation passes one after the other.
        """
        self._side = Operations(side, self._finished)
        self._from = first_step
        self._reach = reach

    @property
    def _operations(self) -> Operations:
        assert self._side is not None  # `_advance` is called after `begin` only
        return self._side

    def poll(self) -> None:
        """Issues full blocks and settles finished ones. Raises Lost."""
        books = self._machine.books
        held = books.held[self.group.slot]
        if held is None:
            return
        if self._side is None:
            if held.size > MOST_HELD:
                raise Lost("its members did not all join")
        elif self._missing(held) <= 0:
            self._machine.update(books.sort)
            self._advance(held, last=False)
            if held.size > 2 * MOST_HELD:
                raise Lost("a rank stopped taking part")

    def check(self) -> None:
        """For a group that this rank has promised to join. Raises Lost if too many waits are pending."""
        held = self._machine.books.held[self.group.slot]
        if held is not None and held.size > 2 * MOST_HELD:
            raise Lost("its members did not all join")

    def finish(self) -> bool:
        """Issues the rest and settles what has come back. Returns whether everything is settled. Raises Lost."""
        held = self._machine.books.held[self.group.slot]
        if held is None or self._side is None:
            return True
        self._machine.update(self._machine.books.sort)
        self._advance(held, last=True)
        return not held.count and self._idle()

    def due_in(self) -> int:
        """After how many steps ``poll`` may have something to do: at least 1."""
        held = self._machine.books.held[self.group.slot]
        return max(1, self._missing(held)) if held is not None else 1

    def _missing(self, held: Held) -> int:
        """How many more steps must be pending until `_advance` may have something to do; less than 1 if none."""
        return self._steps_due() - held.count - len(self._machine.books.closed)

    def _steps_due(self) -> int:
        """At how many pending steps `_advance` may have something to do."""
        raise NotImplementedError

    def _advance(self, held: Held, *, last: bool) -> None:
        """Settles blocks that have come back, and issues full ones. With ``last``, also issues a short one."""
        raise NotImplementedError

    def _take(self, held: Held, length: int, *, last: bool) -> list[StepWaits]:
        """Removes the next block from the pending steps. Returns nothing if there are not enough of them.

        Steps whose waits not all members have kept pending are left unsplit.
        """
        least = 1 if last else length
        if held.count < least:
            return []
        if early := held.take(sum([step.number < self._from for step in held.steps])):
            unsplit = {"unsplit": sum([step.total for step in early])}
            self._machine.update(self._machine.books.settle, self.group.slot, unsplit, early[-1].number)
        return held.take(length) if held.count >= least else []

    def _idle(self) -> bool:
        raise NotImplementedError

    def _enter(self, settled: Settled, said: Sequence[int]) -> None:
        """A block is settled. ``said``: the words about earlier blocks that came with it."""
        number = self._settled
        self._settled += 1
        self._mixes.settled(self.group, settled)
        self._mixes.hear(self.group, self._open_before(number), said)
        self._open[number] = open_block(settled)
        through = self._open.pop(number - self.lag - ROUNDS + 1, None)
        self._machine.update(self._enter_books, settled, through)

    def _open_before(self, number: int) -> list[OpenBlock | None]:
        """The blocks that the words with block ``number`` are about: all ranks had settled them when it was issued."""
        return [self._open.get(number - self.lag - age) for age in range(ROUNDS)]

    def _mix_words(self) -> list[int]:
        """The words about earlier blocks that this rank sends with the block that is issued now."""
        number = self._issued
        self._issued += 1
        return self._mixes.words(self.group, self._open_before(number))

    def _enter_books(self, settled: Settled, through: OpenBlock | None) -> None:
        books, slot = self._machine.books, self.group.slot
        parts = {part: getattr(settled, part) for part in ("network", "straggler", "pipeline", "queue", "unsplit")}
        books.settle(slot, parts, settled.through)
        self._machine.words[_BUBBLE_AT] += settled.schedule
        if settled.latency and settled.link is not None:
            books.latency(slot, settled.link, settled.latency)
        if settled.behind:
            books.blame(slot, settled.behind)
        if any(settled.late_own) or any(settled.late_elsewhere):
            books.late(slot, settled.late_own, settled.late_elsewhere, settled.late_steps)
        if through is not None:
            books.charge_waited_for(self._mixes.charge(self.group, through))

    def charge_open(self) -> None:
        """At the end of the process: charges the waits of the last blocks with the mixes that are known."""
        for number in sorted(self._open):
            block = self._open.pop(number)
            self._machine.update(self._machine.books.charge_waited_for, self._mixes.charge(self.group, block))


class CollectiveExchange(SlotExchange):
    """The exchange of a group with collectives. Up to two blocks are in flight at the same time."""

    lag = _IN_FLIGHT

    def __init__(self, machine: PhaseMachine, group: Group, rank: int, finished: Callable[[Any], None], mixes: Mixes):
        super().__init__(machine, group, rank, finished, mixes)
        self._inflight: deque[tuple[Operation, list[StepWaits], Shape]] = deque()
        self._shapes = deque([Shape(BLOCK_STEPS[0], FIRST_WIDTH)] * _IN_FLIGHT)
        """The shapes of the next blocks. Each comes from a block that every rank settles before it issues that one."""

    def _steps_due(self) -> int:
        return self._shapes[0].length if self._shapes else 0

    def _advance(self, held: Held, *, last: bool) -> None:
        while self._inflight and self._operations.came_back(self._inflight[0][0]):
            self._settle(*self._inflight.popleft())
        while self._shapes and (block := self._take(held, self._shapes[0].length, last=last)):
            shape = self._shapes.popleft()
            words = array("q", bytes(8 * words_of(*shape)))
            pack(words, self._rank, block, *shape)
            words.extend(self._mix_words())
            self._inflight.append((self._operations.start(words), block, shape))

    def _idle(self) -> bool:
        return not self._inflight

    def _settle(self, operation: Operation, steps: list[StepWaits], shape: Shape) -> None:
        on_device = self._machine.device is not None
        try:
            settled = split(operation.words, self._rank, self.group.ranks, steps, *shape, accelerator=on_device)
        except BlockMismatch as error:
            raise Lost(str(error)) from error
        length = block_length(settled.step_ns, self._reach)
        self._shapes.append(Shape(length, width_for(settled.most_calls)))
        self._enter(settled, operation.words[words_of(*shape) :])


class MessageExchange(SlotExchange):
    """The exchange of a group with sends and receives. One block at a time, in two all-reduces (ledger/messages.py)."""

    def __init__(self, machine: PhaseMachine, group: Group, rank: int, finished: Callable[[Any], None], mixes: Mixes):
        super().__init__(machine, group, rank, finished, mixes)
        self._length = BLOCK_STEPS[0]
        self._block: list[StepWaits] = []
        self._operation: Operation | None = None
        self._stages: Stages | None = None  # set when the transfers are known, after the first all-reduce
        self._capacity = first_capacity(len(group.ranks))
        self.together: tuple[int, ...] = ()
        """Slots of collectives in which all ranks of this group take part."""

    def _steps_due(self) -> int:
        return self._length if self._operation is None else 0

    def _advance(self, held: Held, *, last: bool) -> None:
        if self._operation is not None and self._operations.came_back(self._operation):
            operation, self._operation = self._operation, None
            try:
                self._go_on(operation.words)
            except BlockMismatch as error:
                raise Lost(str(error)) from error
        if self._operation is None and (block := self._take(held, self._length, last=last)):
            self._block = block
            words = array("q", bytes(8 * times_words(len(self.group.ranks))))
            # Times of a device are converted, each device's with its own error.
            clock = clock_word() if self._machine.device is None else NOTHING
            pack_times(words, self._rank, self.group.ranks, self._block, self._length, clock)
            ranks = self.group.ranks
            for index in steps_to_replay(self._length, len(ranks), self._capacity):
                step = self._block[index] if index < len(self._block) else None
                words.extend(sequence_words(self._rank, ranks, step, self.together, self._capacity))
            self._operation = self._operations.start(words)

    def _idle(self) -> bool:
        return self._operation is None

    def _go_on(self, result: array[int]) -> None:
        slot, ranks, steps = self.group.slot, self.group.ranks, self._block
        if self._stages is None:
            floors = transfers(result, self._rank, ranks, steps)
            self._stages = stages_of(steps, floors, *self._replay(result))
            words = array("q", bytes(8 * stages_words(self._length)))
            pack_stages(words, self._rank, slot, self.together, steps, self._stages, self._length)
            words.extend(self._mix_words())
            self._operation = self._operations.start(words)
            return
        settled = split_stages(result, self._rank, ranks, slot, steps, self._stages)
        said = result[stages_words(self._length) :]
        self._stages = None
        self._length = messages_block_length(settled.step_ns, self._reach)
        self._enter(settled, said)

    def _replay(self, result: array[int]) -> tuple[int, tuple[int, int] | None]:
        """(ns that all transfers, including those of other ranks, cost this rank in a step; the slowest link)."""
        ranks, capacity = self.group.ranks, self._capacity
        said = result[times_words(len(ranks)) :]
        steps = len(steps_to_replay(self._length, len(ranks), capacity))
        self._capacity = capacity_of(said, len(ranks), capacity, steps)
        found = replayed(said, ranks, links_of(result, ranks), capacity, steps) if capacity else None
        return (found.cost[ranks.index(self._rank)], found.link) if found is not None else (0, None)
