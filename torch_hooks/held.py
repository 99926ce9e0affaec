"""The waits of one group that are pending until their split is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from operator import add, sub
from struct import Struct

from ..ledger.causes import CAUSE, CAUSES, OWN_CAUSES
from ..ledger.layout import SLOTS, WORD_AT
from ..ledger.waits import Message, StepWaits, size_of
from .wait_codes import Issues, WaitCode, peer_of

Wait = tuple[WaitCode, int, int, int, int, Issues]
"""A wait: its code, its start, its length without interruptions, its end, for how long the rank's own threads got no
CPU in it, and the sends and receives that it was for. Times in ns; start and end on CLOCK_MONOTONIC."""

_CAUSE_AT = WORD_AT["cause_ns"][0]
_WAITED_AT = WORD_AT["slot_waited_ns"][0]
_MARK_WORDS = len(CAUSES) + SLOTS
assert _CAUSE_AT + len(CAUSES) == _WAITED_AT  # a mark is one copy of both
MARK = slice(_CAUSE_AT * 8, (_CAUSE_AT + _MARK_WORDS) * 8)
"""The bytes of the ledger that are kept as a *mark*: what has been charged to each cause, and waited in each slot."""
_MARK = Struct(f"<{_MARK_WORDS}q")

_HOST, _BLOCKED, _COMPUTE, _RECOMPUTE = (CAUSE[cause] for cause in ("host", "host_blocked", "compute", "recompute"))
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
        "_size",
        "_steps",
        "before",
        "calls",
        "complete",
        "mark",
        "outside",
        "pairwise",
        "queues",
        "slot",
        "waits",
    )

    def __init__(self, slot: int, outside: tuple[int, ...], mark: bytes, pairwise: bool):
        self.slot = slot
        self.pairwise = pairwise
        self.outside = outside
        """Slots in which waits may make the rank late for this group."""
        self.mark = self.before = self._base = mark
        """The marks at the end of the last wait, at the end of the last wait of earlier steps, and the same for the
        first step that is closed and not completed."""
        self.complete = True
        """Whether each wait of the open step was measured."""
        self.calls: list[int] = []
        """The waits of the open step in this group, ns."""
        self.queues: list[int] = []
        """For each, for how many ns the rank's own threads got no CPU."""
        self.waits: list[Wait] = []
        """The same waits as a whole, only in groups whose ranks send to each other."""
        self._steps: deque[StepWaits] = deque()
        self._closed: list[tuple[int, int, list[int], list[int], list[Wait], bytes, bool]] = []
        self._size = 0

    @property
    def steps(self) -> deque[StepWaits]:
        """The closed steps."""
        if not self._closed:
            return self._steps
        numbers, walls, calls, queues, waits, marks, complete = zip(*self._closed, strict=True)
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
        self._steps += steps
        self._size += size_of(steps)
        return self._steps

    def _between(self, marks: Sequence[bytes]) -> tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]:
        """The rank's own time per LATE_FAMILIES, and its waits per slot of ``outside``, between neighbouring marks."""
        words, last = memoryview(b"".join(marks)).cast("q"), (len(marks) - 1) * _MARK_WORDS
        nothing = [0] * (len(marks) - 1)

        def between(column: int) -> list[int] | None:
            """None if the word has not changed, which saves the time for most causes."""
            if words[column] == words[last + column]:
                return None
            values = words[column::_MARK_WORDS].tolist()
            return list(map(sub, values[1:], values))

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

    def was_blocked(
        self, begun: tuple[int, int], ended: tuple[int, int], blocked: tuple[int, int], compute: int
    ) -> None:
        """The loop was ``blocked`` for a part of the open step. Corrects the mark, which has it as host and compute.

        All are (host, compute) in ns. It is not known when in the step it was. So of both, the part before the mark is
        that of all time in the phase. ``compute``: the cause to which compute is charged.
        """
        mark = [*_MARK.unpack(self.mark)]
        marked = mark[_HOST], mark[_COMPUTE] + mark[_RECOMPUTE]
        from_host, from_compute = (
            part * (at - start) // (end - start) if part else 0
            for part, at, start, end in zip(blocked, marked, begun, ended, strict=True)
        )
        mark[_HOST] -= from_host
        mark[compute] -= from_compute
        mark[_BLOCKED] += from_host + from_compute
        self.mark = _MARK.pack(*mark)

    def close_step(self, number: int, wall: int) -> None:
        mark, calls = self.mark, self.calls
        if not self._closed:
            self._base = self.before
        self._closed.append((number, wall, calls, self.queues, self.waits, mark, self.complete))
        self.before, self.complete = mark, True
        if calls:
            self.calls, self.queues = [], []
            if self.pairwise:
                self.waits = []


def _messages(waits: Sequence[Wait]) -> list[Message]:
    return [
        Message(one.peer, one.sent, one.at, end, ns, queue) for _, _, ns, end, queue, issues in waits for one in issues
    ]
