"""The waits of one group that are pending until their split is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from operator import sub
from struct import Struct

from ..ledger.causes import CAUSE, CAUSES, LATE_FAMILIES, own_time
from ..ledger.layout import SLOTS, WORD_AT
from ..ledger.waits import Message, StepWaits
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
_NO_OWN: Sequence[int] = (0,) * len(LATE_FAMILIES)
_NOWHERE: Sequence[int] = (0,) * SLOTS


def _own(spent: tuple[int, ...]) -> list[int]:
    """`own_time` between two marks, at least 0."""
    own = own_time(spent)
    # The difference of two marks may be negative: blocked time moves out of `compute` at the end of a step, and how
    # much of it was before the mark is an estimate.
    return own if min(own) >= 0 else [max(0, ns) for ns in own]


class Held:
    """Keeps the waits of one group, step by step.

    A step keeps only what it needs. `steps` completes all closed ones at once, which takes a third of the time.
    """

    __slots__ = ("_closed", "_steps", "before", "complete", "first", "mark", "outside", "pairwise", "size", "slot")

    def __init__(self, slot: int, outside: tuple[int, ...], mark: bytes, pairwise: bool, first: int):
        self.slot = slot
        self.pairwise = pairwise
        self.outside = outside
        """Slots in which waits may make the rank late for this group."""
        self.mark = self.before = mark
        """The marks at the end of the last wait, and at the end of the last wait of earlier steps."""
        self.complete = True
        """Whether each wait of the open step was measured."""
        self.first = first
        """Which wait of the open step, of all groups, is the first one that may be pending here."""
        self._steps: deque[StepWaits] = deque()
        self._closed: list[tuple[int, int, Sequence[Wait], int, bytes, bytes, bool]] = []
        self.size = 0
        """The memory that the completed steps take, as a count of numbers, so that it can be limited."""

    @property
    def steps(self) -> deque[StepWaits]:
        """The closed steps. The caller may remove those from the start."""
        slot, pairwise, outside = self.slot, self.pairwise, self.outside
        last, at_last = b"", ()  # a mark, and its words
        for number, wall, of_all, first, before, mark, complete in self._closed:
            waits = [wait for wait in islice(of_all, first, None) if (wait[0] >> 8 & 7) == slot]  # slot_of(code)
            peers: Sequence[int] = ()
            messages: list[Message] = []
            if pairwise:
                peers = [peer_of(wait[0]) for wait in waits]
                for _, _, ns, end, queue, issues in waits:
                    messages += [Message(one.peer, one.sent, one.at, end, ns, queue) for one in issues]
                complete = complete and all(message.issued for message in messages)
            own, elsewhere = _NO_OWN, _NOWHERE
            if mark is not before:
                at_start = at_last if before is last else _MARK.unpack(before)
                last, at_last = mark, _MARK.unpack(mark)
                spent = tuple(map(sub, at_last, at_start))
                own = _own(spent)
                if outside:
                    elsewhere = [0] * SLOTS
                    for other in outside:
                        elsewhere[other] = spent[len(CAUSES) + other]
            calls, queues = [wait[2] for wait in waits], [wait[4] for wait in waits]
            step = StepWaits(number, wall, calls, own, elsewhere, peers, messages, complete, queues)
            self._steps.append(step)
            self.size += step.size
        self._closed.clear()
        return self._steps

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

    def close_step(self, number: int, wall: int, waits: Sequence[Wait]) -> None:
        """``waits``: those of the step, in all groups."""
        mark = self.mark
        self._closed.append((number, wall, waits, self.first, self.before, mark, self.complete))
        self.before = mark
        self.complete = True
        self.first = 0
