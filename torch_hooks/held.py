"""The waits of one group that are pending until their split is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from operator import add, sub
from struct import Struct

from ..ledger.causes import CAUSE, CAUSES, OWN_CAUSES, WORK_CAUSES
from ..ledger.layout import SLOTS, WORD_AT
from ..ledger.waits import Message, StepWaits, size_of
from .wait_codes import Issues, WaitCode, peer_of

Wait = tuple[WaitCode, int, int, int, int, Issues, bytes]
"""A wait: its code, its start, its length without interruptions, its end, for how long the rank's own threads got no
CPU in it, the sends and receives that it was for, and the mark at its end. Times in ns; start and end on
CLOCK_MONOTONIC."""
Blocked = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int, int]
"""The arguments of `unblocked`."""

_CAUSE_AT = WORD_AT["cause_ns"][0]
_WAITED_AT = WORD_AT["slot_waited_ns"][0]
_MARK_WORDS = len(CAUSES) + SLOTS
assert _CAUSE_AT + len(CAUSES) == _WAITED_AT  # a mark is one copy of both
MARK = slice(_CAUSE_AT * 8, (_CAUSE_AT + _MARK_WORDS) * 8)
"""The bytes of the ledger that are kept as a *mark*: what has been charged to each cause, and waited in each slot."""
_MARK = Struct(f"<{_MARK_WORDS}q")

_HOST, _BLOCKED, _STARVED = CAUSE["host"], CAUSE["host_blocked"], CAUSE["compute_queue"]
_WORKS = [CAUSE[cause] for cause in WORK_CAUSES]
_OWN = [[CAUSE[cause] for cause in causes] for causes in OWN_CAUSES.values()]
_NOT_COUNTED = 256
_new_step = partial(tuple.__new__, StepWaits)  # from its fields, without a call of Python code


class Held:
    """Keeps the waits of one group, step by step.

    A step keeps only what it needs. `steps` completes all closed ones at once, and reads its marks column by column:
    that takes a fourth of the time.
    """

    __slots__ = (
        "_base",
        "_closed",
        "_mark",
        "_size",
        "_steps",
        "complete",
        "outside",
        "pairwise",
        "skipped",
        "slot",
    )

    def __init__(self, slot: int, outside: tuple[int, ...], pairwise: bool):
        self.slot = slot
        self.pairwise = pairwise
        self.outside = outside
        """Slots in which waits may make the rank late for this group."""
        self.complete = True
        """Whether each wait of the next step that is closed was seen."""
        self.skipped = 0
        """How many waits of the next step that is closed were before this group's waits were kept."""
        self._closed: list[tuple[int, int, list[Wait], bytes, bool]] = []
        self._steps: deque[StepWaits] = deque()
        self._size = 0

    def begin(self, before: bytes, mark: bytes) -> None:
        """``before``: the mark from which the first step counts. ``mark``: that of now, for steps without a wait."""
        self._base, self._mark = before, mark

    @property
    def steps(self) -> deque[StepWaits]:
        """The closed steps."""
        if not self._closed:
            return self._steps
        numbers, walls, waits, marks, complete = zip(*self._closed, strict=True)
        calls = [[wait[2] for wait in each] for each in waits]
        queues = [[wait[4] for wait in each] for each in waits]
        own, elsewhere = self._between([self._base, *marks])
        peers, messages = repeat(()), repeat(())
        if self.pairwise:
            peers = [[peer_of(wait[0]) for wait in each] for each in waits]
            messages = [_messages(each) for each in waits]
            complete = [
                whole and all(message.issued for message in each)
                for whole, each in zip(complete, messages, strict=True)
            ]
        fields = zip(numbers, walls, calls, own, elsewhere, peers, messages, complete, queues, strict=False)
        steps = list(map(_new_step, fields))
        self._closed.clear()
        self._base = marks[-1]
        self._steps += steps
        self._size += size_of(steps)
        return self._steps

    def _between(self, marks: Sequence[bytes]) -> tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]:
        """The rank's own time per LATE_FAMILIES, and its waits per slot of ``outside``, between neighbouring marks."""
        words = memoryview(b"".join(marks)).cast("q")
        nothing = [0] * (len(marks) - 1)

        def between(column: int) -> list[int] | None:
            """None if the word has not changed, which saves the time for most causes."""
            values = words[column::_MARK_WORDS].tolist()
            # Not only its ends: what turns out to be no evaluation moves back to `compute`, for example.
            return list(map(sub, values[1:], values)) if values.count(values[0]) < len(values) else None

        families = []
        for causes in _OWN:
            columns = [column for column in map(between, causes) if column is not None]
            spent = columns[0] if columns else nothing
            for column in columns[1:]:
                spent = list(map(add, spent, column))
            # The difference of two marks may be negative: blocked time moves out of `compute` at the end of a step, and
            # how much of it was before the mark is an estimate.
            families.append(spent if min(spent) >= 0 else [max(0, ns) for ns in spent])
        slots = [nothing] * SLOTS
        for slot in self.outside:
            slots[slot] = between(len(CAUSES) + slot) or nothing
        return list(zip(*families, strict=True)), list(zip(*slots, strict=True))

    def take(self, most: int) -> list[StepWaits]:
        """Removes up to ``most`` closed steps, the first ones."""
        steps = self.steps
        taken = [steps.popleft() for _ in range(min(most, len(steps)))]
        self._size -= size_of(taken)
        return taken

    @property
    def size(self) -> int:
        """The memory that the closed steps take, as a count of numbers. Up to _NOT_COUNTED steps may be missing."""
        if len(self._closed) > _NOT_COUNTED:
            _ = self.steps
        return self._size

    @property
    def count(self) -> int:
        """The number of closed steps."""
        return len(self._steps) + len(self._closed)

    def close_step(self, number: int, wall: int, waits: list[Wait], complete: bool, blocked: Blocked | None) -> None:
        """A step of ``wall`` ns is closed. ``waits``: those of this group. ``blocked``: see `unblocked`."""
        if waits:
            self._mark = waits[-1][6] if blocked is None else unblocked(waits[-1][6], *blocked)
        self._closed.append((number, wall, waits, self._mark, complete and self.complete))
        self.complete, self.skipped = True, 0


def unblocked(
    mark: bytes, begun: tuple[int, int], ended: tuple[int, int], blocked: tuple[int, int], queued: int, compute: int
) -> bytes:
    """Corrects a mark in a step of which the loop was ``blocked`` for a part: the mark has it as host and compute.

    All are (host, compute) in ns. It is not known when in the step it was. So of both, the part before the mark is that
    of all time in the phase. In ``queued`` ns of ``blocked``, it queued for a CPU. ``compute``: the cause to which
    compute is charged.
    """
    words = [*_MARK.unpack(mark)]
    marked = words[_HOST], sum([words[at] for at in _WORKS])
    from_host, from_compute = (
        part * (at - start) // (end - start) if part else 0
        for part, at, start, end in zip(blocked, marked, begun, ended, strict=True)
    )
    words[_HOST] -= from_host
    words[compute] -= from_compute
    queue = (from_host + from_compute) * queued // max(1, sum(blocked))
    words[_STARVED] += queue
    words[_BLOCKED] += from_host + from_compute - queue
    return _MARK.pack(*words)


def _messages(waits: Sequence[Wait]) -> list[Message]:
    return [Message(one.peer, one.sent, one.at, wait[3], wait[2], wait[4]) for wait in waits for one in wait[5]]
