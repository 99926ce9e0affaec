"""Sees that another training begins in the same process: a search over learning rates, or one model after another.

The sign is an optimizer that ends a step for the first time, none of whose parameters any optimizer has trained before.
The second optimizer of a GAN ends no step. If the optimizer before it still exists, a pause is needed, too, or many
steps without that one. The time from the last step of one training to the first request of the next one, or to its
first backward pass, is `between`.

Many short ones are rounds of one loop: clients of a federated training, tasks of a meta-learning, members of a
population. What is between them is then a part of that loop.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from ..ledger.causes import PHASE
from ..ledger.layout import WORD_AT
from .books import ANY_OWN

if TYPE_CHECKING:
    from .session import Session

_TRAININGS_AT = WORD_AT["trainings"][0]
_WINDOW_AT = WORD_AT["window_ns"][0]
_BETWEEN = PHASE["between"]
PAUSE_NS = 1_000_000_000
"""The shortest pause between two trainings, if the optimizer of the first one still exists."""
_ALONE = 64
"""Without such a pause, another training has begun if its optimizer ends this many steps and no other one steps."""
_FEW_STEPS, _ROUNDS = 20, 4
"""Trainings with fewer steps than this on average are rounds, if there were this many."""
_SHORT_NS, _SHORT_ROUNDS = 10_000_000_000, 16
"""So are trainings that take less time than this on average, with what is between them, if there were this many."""
_MOST = 4096
"""The most parameters of an optimizer that are looked at."""


class Trainings:
    """Counts the trainings of a process. Its callers catch its errors."""

    __slots__ = ("_session", "_trained", "_unsure", "asked_ns", "begun", "fresh", "on_cpu", "stepped_ns")

    def __init__(self, session: Session):
        self._session = session
        self._trained: dict[int, weakref.ref[Any]] = {}
        self._unsure = 0  # trainings that were counted without a pause
        self.fresh: dict[int, bool] = {}
        """Optimizers, by ``id``, that train only what none has trained before, as long as it is not known whether
        another training has begun with them -> whether they have ended a step."""
        self.on_cpu = False
        """Whether all parameters of the newest optimizer are on the CPU."""
        self.begun = False
        """Whether a backward pass has begun since the last step ended."""
        self.stepped_ns = self.asked_ns = 0
        """When the last step ended, and when the loop last asked for a batch before that backward pass, or when that
        began without a batch; 0: not yet. `Loop` sets them, because a step should make few calls."""

    def meets(self, key: int, optimizer: Any) -> None:
        """An optimizer takes its first step."""
        trained, known = self._trained, False
        parameters = [one for group in optimizer.param_groups for one in group["params"][:_MOST]][:_MOST]
        for one in parameters:
            at = id(one)
            ref = trained.get(at)
            if ref is not None and ref() is one:
                known = True
            else:
                trained[at] = weakref.ref(one, lambda gone, at=at: self._forget(at, gone))
        self.on_cpu = bool(parameters) and all(one.device.type == "cpu" for one in parameters)
        if parameters and not known:
            self.fresh[key] = False

    def paused(self) -> bool:
        """Whether there was a pause before the open step."""
        return self._pause_ns() >= PAUSE_NS

    def _pause_ns(self) -> int:
        """The time before the open step; 0 if it is the first one, or if it has not begun to learn."""
        return max(0, self.asked_ns - self.stepped_ns) if self._session.machine.steps and self.asked_ns else 0

    def take_back(self) -> None:
        """An optimizer goes on that was replaced before. So the one that replaced it trains together with it, unless a
        pause has told otherwise."""
        if (writer := self._session.writer) is not None:
            writer.words[_TRAININGS_AT] -= self._unsure
        self._unsure = 0

    def _are_rounds(self, words: memoryview) -> bool:
        ended = max(1, words[_TRAININGS_AT] - 1)
        mean_ns = (time.monotonic_ns() - words[_WINDOW_AT]) // ended
        few = ended >= _ROUNDS and self._session.machine.steps < _FEW_STEPS * ended
        return few or (ended >= _SHORT_ROUNDS and mean_ns < _SHORT_NS)

    def _forget(self, at: int, gone: weakref.ref[Any]) -> None:
        if self._trained.get(at) is gone:
            del self._trained[at]

    def ends_step(self, key: int, replaced: bool, alone: int) -> None:
        """A fresh optimizer is about to end a step. ``replaced``: the one before it still exists. ``alone``: how many
        steps it has ended since another one stepped."""
        machine, writer = self._session.machine, self._session.writer
        is_first, self.fresh[key] = not self.fresh[key], True
        pause = self._pause_ns() if is_first else 0
        recorded = writer is not None and machine.stepping
        if recorded and replaced and pause < PAUSE_NS and machine.steps and alone < _ALONE:
            return
        del self.fresh[key]
        if writer is None or not recorded:
            return
        writer.words[_TRAININGS_AT] += 1
        self._unsure += int(replaced and pause < PAUSE_NS and machine.steps > 0)
        if pause and not self._are_rounds(writer.words):
            machine.reclassify(ANY_OWN, _BETWEEN, pause)
