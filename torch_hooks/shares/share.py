"""`whyidle.share()`: this rank's part of a step's microbatches or samples."""

from __future__ import annotations

import operator
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ...ledger.layout import WORD_AT
from ..exchange.operations import Lost
from .meeting import Meeting
from .meter import Meter
from .plan import counts_of
from .rounds import DOUBTS, GROUPS, Rounds

if TYPE_CHECKING:
    from ..exchange.exchange import Exchange
    from ..exchange.operations import Operation
    from ..session import Session

MOST_RANKS = 2048
_UNITS_AT = WORD_AT["shared_units"][0]
_MOST_UNITS = 1 << 60
"""A ledger counts no more, so that a word has room for them."""
NOT_RECORDED = "this process is not recorded: call whyidle.attach() first, or use `whyidle run`"
ONE_RANK = "there is one rank"
NO_STORE = "the ranks have no TCP store in which whyidle's own group could meet"
TOO_MANY = f"there are more than {MOST_RANKS} ranks"
MEETING = "the ranks have not met yet"
COMPARING = "no rank is known to be slower than the others"
NO_TOTAL = "the total must be a whole number, at least 0"


@dataclass(frozen=True, slots=True)
class Share:
    """The units (microbatches or samples) of one rank in one step."""

    count: int
    """How many units this rank has."""
    start: int
    """The number of its first unit among all units of the step, from 0."""
    total: int
    """The units of all ranks."""
    ranks: int
    reason: str
    """Why shares are equal; empty if they follow the speed of the ranks."""

    @property
    def weight(self) -> float:
        """The factor for the mean loss of each single unit, if the gradients of units are added up.

        Frameworks then take the mean over ranks: (1/ranks) · Σ (ranks/total) · loss = the mean over all units.
        """
        return self.ranks / self.total if self.total else 0.0

    @property
    def mean_weight(self) -> float:
        """The factor for one loss that is the mean over all units of this rank: count · ranks / total."""
        return self.count * self.weight


class Shares:
    """The shares of this rank in one world. No method raises, and none waits for other ranks."""

    def __init__(self, rank: int, ranks: tuple[int, ...], finished: Callable[[Any], None]):
        """``finished``: see `Operations`."""
        self.exchange: Exchange | None = None
        self.ranks = ranks
        self._rank, self._index = rank, ranks.index(rank)
        self._finished = finished
        self._rounds = Rounds(self._index, len(ranks))
        self._meter = Meter()
        self._operation: Operation | None = None
        self._meeting: Meeting | None = None
        self._stopped = ONE_RANK if len(ranks) == 1 else ""
        self._call = 0
        self._since = 0, 0  # a call, and its time in ns
        self._counted: tuple[object, tuple[int, ...], tuple[int, ...]] = None, (), ()

    def meet(self, exchange: Exchange) -> None:
        """This rank is recorded, with this exchange of the world."""
        self.exchange = exchange
        if self._stopped:
            return
        if exchange.server is None:
            self._stopped = NO_STORE
        elif len(self.ranks) > MOST_RANKS:
            self._stopped = TOO_MANY
        else:
            self._meeting = Meeting(exchange.server, self.ranks, self._rank, self._finished)

    def share(self, total: int, words: memoryview | None, own_data: bool) -> Share:
        """The share in the step that begins now. ``words``: those of the ledger; None without one."""
        self._call += 1
        try:
            self._hear()
            if words is not None and not self._stopped:
                self._ask(words, own_data)
        except Exception as error:  # the fence around the training
            self.close(f"the ranks cannot be compared any more: {error}")
            if not isinstance(error, Lost):
                self._operation = None
        # What the ranks have agreed on holds even if they cannot agree on anything new.
        if self._rounds.begin_call(self._call, total):
            self._meter.restart()
            self._since = self._call, time.monotonic_ns()
        found = self._share(total)
        if words is not None:
            self._meter.step_begins(words, found.count)
            words[_UNITS_AT] = min(words[_UNITS_AT] + found.count, _MOST_UNITS)
        return found

    def _hear(self) -> None:
        """Also after `close`: the other ranks keep to a round that has ended for them."""
        meeting, operation = self._meeting, self._operation
        if operation is None or meeting is None or meeting.operations is None:
            return
        if meeting.operations.came_back(operation):
            self._operation = None
            self._rounds.hear(operation.words, self._call)

    def _ask(self, words: memoryview, own_data: bool) -> None:
        meeting, rounds = self._meeting, self._rounds
        if meeting is None or meeting.operations is None:
            if meeting is not None and meeting.failure:
                raise RuntimeError(meeting.failure)
            return
        if self._operation is not None or self._call <= rounds.due:
            return
        begun, since = self._since
        step_ns = (time.monotonic_ns() - since) // max(1, self._call - begun)
        doubt = 0 if own_data or not self._has_other_groups() else GROUPS
        said = rounds.words(self._call, step_ns, doubt, self._meter.pace())
        self._operation = meeting.operations.start(array("q", said))

    def _has_other_groups(self) -> bool:
        """Whether this rank waits in groups other than the world: of tensor parallelism or of a pipeline, perhaps."""
        return self.exchange is not None and any(slot for slot in self.exchange.groups.slots)

    def _share(self, total: int) -> Share:
        paces = self._rounds.plan.paces
        if self._counted[0] != (key := (total, paces)):
            counts = counts_of(total, len(self.ranks), paces)
            self._counted = key, counts, (0, *accumulate(counts))
        _, counts, starts = self._counted
        return Share(counts[self._index], starts[self._index], total, len(self.ranks), self._reason(paces))

    def _reason(self, paces: tuple[int, ...]) -> str:
        if paces:
            return ""
        if self._stopped or self._rounds.doubt:
            return self._stopped or DOUBTS[self._rounds.doubt]
        if self._meeting is None:
            return NOT_RECORDED
        return COMPARING if self._meeting.operations is not None else MEETING

    def close(self, why: str = NOT_RECORDED, *, wait: bool = False) -> None:
        """No further round begins. ``wait``: see `Meeting.close`."""
        self._stopped = self._stopped or why
        if self._meeting is not None:
            self._meeting.close(wait=wait)


def share(session: Session, total: Any, own_data: bool, finished: Callable[[Any], None]) -> Share:
    """The share of this rank in the step that begins. ``finished``: see `Operations`. Never raises."""
    try:
        total = operator.index(total)
    except TypeError:
        total = -1
    if total < 0:
        return Share(0, 0, 0, 1, NO_TOTAL)
    try:
        shares = _shares_of(session, finished)
        writer = session.writer
        return shares.share(total, writer.words if writer is not None else None, own_data)
    except Exception as error:  # the fence around the training
        session.fault("exchange", error)
        return Share(total, 0, total, 1, f"the share cannot be calculated: {error!r}")


def _shares_of(session: Session, finished: Callable[[Any], None]) -> Shares:
    """Those of the present world of this process."""
    exchange = session.find_group()
    rank, ranks = _world()
    shares = session.shares
    # A process that is no longer recorded keeps the shares on which its ranks have agreed.
    another = shares is not None and None not in (exchange, shares.exchange) and shares.exchange is not exchange
    if shares is None or shares.ranks != ranks or another:
        if shares is not None:
            shares.close()
        shares = session.shares = Shares(rank, ranks, finished)
    if exchange is not None and shares.exchange is None:
        shares.meet(exchange)  # later than the first call, perhaps: the calls of all ranks count from the first one
    return shares


def _world() -> tuple[int, tuple[int, ...]]:
    """This process's rank, and all ranks of the world; one rank if there is no process group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, (0,)
    return distributed.get_rank(), tuple(range(distributed.get_world_size()))
