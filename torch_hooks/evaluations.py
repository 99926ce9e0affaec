"""Compute that the training does not learn from, and that no data loader shows.

Two signs are seen: a module is put into evaluation mode (`Module.eval`), or gradients are off. The end of evaluation
mode is not seen, because `Module.train` calls itself for each submodule. So an evaluation ends at the next thing that
the loop does: it asks for a batch, or a backward pass begins.

What runs without gradients may also be a generation, a teacher, or log-probabilities. So the ledger has another word
for it. The updates of optimizers and averages of weights are left out: they follow a backward pass, or take hardly any
time.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from ..ledger.causes import PHASE, WORK_PHASES
from ..ledger.layout import WORD_AT
from .machine import COMPUTE, EVAL, HOST

if TYPE_CHECKING:
    from .session import Session

_NO_GRAD_AT, _BATCHES_AT = WORD_AT["no_grad_ns"][0], WORD_AT["batches"][0]
_WORKS = frozenset(PHASE[phase] for phase in WORK_PHASES)
LEAST_NS = 1_000_000
"""Shorter stretches without gradients do not count: models have them inside their forward passes."""


class Evaluations:
    """Finds stretches of compute that is not learned from. Its callers catch its errors.

    ``unused``: the loop has a batch that no backward pass has used yet. What it does then is a part of the step.
    """

    __slots__ = (
        "_base",
        "_batches",
        "_begun",
        "_found",
        "_mode_base",
        "_mode_begun",
        "_module",
        "_session",
        "found",
        "learned",
        "off",
        "open",
        "pending",
    )

    def __init__(self, session: Session):
        self._session = session
        self.forget()

    def forget(self) -> None:
        self.open = False
        """Whether a module was put into evaluation mode, and the loop has not gone on since."""
        self.learned = False
        """Whether a backward pass has begun since the last step or batch. What follows it updates the weights."""
        self.pending = 0
        """ns without gradients on a batch of which it is not known whether the loop learns from it."""
        self._module: weakref.ref[Any] | None = None
        self._mode_begun = 0
        self._mode_base = self._base = HOST  # the phases before an evaluation, and before gradients were off
        self.off = False
        """Whether gradients are off, and it is measured what runs meanwhile."""
        self._begun = 0  # the value of `computed` when gradients were switched off
        self.found = 0
        """ns of evaluation that were found, by `computed`."""
        self._found = self._batches = 0  # the values of `found` and of a word at that time

    def computed(self) -> int:
        """ns of compute up to now, for differences. On an accelerator, which lags behind, the host's clock."""
        machine, writer = self._session.machine, self._session.writer
        now = time.monotonic_ns()
        if machine.device is not None or writer is None:
            return now
        return machine.worked() + (now - machine.since if machine.phase in _WORKS else 0)

    # -- evaluation mode

    def mode_begins(self, module: Any, unused: bool) -> None:
        """A module is put into evaluation mode, by any thread."""
        machine = self._session.machine
        if self.open or unused or not machine.stepping or not machine.mine():
            return
        if machine.phase in (COMPUTE, HOST):
            self._mode_base = machine.phase
            self._evaluates()
        elif self.off:
            self._mode_base = self._base
        else:
            return
        self.open, self._module, self._mode_begun = True, weakref.ref(module), self.computed()
        machine.evaluating = True

    def _evaluates(self) -> None:
        """What runs now is an evaluation. An accelerator knows better than this how much of what is launched between
        steps it is: see `PhaseMachine.evaluating`."""
        machine = self._session.machine
        if machine.device is None or machine.phase == COMPUTE:
            machine.base(EVAL)

    def mode_ends(self, *, learns: bool = False) -> None:
        """The loop goes on. ``learns``: with a backward pass. If the module is still in evaluation mode then, it was
        not evaluated but trained in that mode."""
        self.open = False
        machine = self._session.machine
        ns = max(0, self.computed() - self._mode_begun)
        if learns and not self._trains():
            self.reclassify(EVAL, COMPUTE, ns)
        else:
            self.found += ns
        if machine.phase == EVAL:
            machine.base(self._mode_base)
        machine.evaluating = False

    def reclassify(self, phase: int, right: int, ns: int) -> None:
        """``ns`` of the open step in ``phase`` were of another phase."""
        self._session.machine.reclassify(phase, right, ns)

    def trains_again(self) -> None:
        """A module runs forward with gradients. Ends the evaluation if its module is in training mode again."""
        if self._trains():
            self.mode_ends()

    def _trains(self) -> bool:
        """Whether the module is in training mode again, or does not exist any more."""
        module = self._module() if self._module is not None else None
        return module is None or module.training

    # -- without gradients

    def gradients_off(self) -> None:
        """Gradients are switched off, by any thread."""
        machine, writer = self._session.machine, self._session.writer
        if self.learned or not machine.stepping or writer is None or not machine.mine():
            return
        base = machine.phase
        # Between two steps, `no_grad` may also be an average of the weights, in Python.
        if base != COMPUTE and not (base == HOST and _in_inference_mode()):
            return
        if base == HOST:
            self._evaluates()
            machine.evaluating = True
        self.off, self._base, self._begun = True, base, self.computed()
        self._found, self._batches = self.found, writer.words[_BATCHES_AT]

    def gradients_on(self, unused: bool) -> bool:
        """Gradients are switched on, by any thread. Returns whether the last batch was used without gradients."""
        machine, writer = self._session.machine, self._session.writer
        if not self.off or writer is None or not machine.mine():
            return False
        self.off = False
        words = writer.words
        batches = words[_BATCHES_AT] - self._batches
        if self.open:  # what has run since then is an evaluation
            self.trains_again()
            return batches > 0
        ns = self.computed() - self._begun - (self.found - self._found)
        if ns >= LEAST_NS:
            if self._base == HOST:
                self.found += ns
            elif unused and not batches:
                self.pending += ns
            else:
                words[_NO_GRAD_AT] += ns
        if machine.phase == EVAL:
            machine.base(self._base)
        machine.evaluating = False
        return batches > 0

    # -- the loop

    def learns(self, unused: bool) -> None:
        """A backward pass begins. ``unused``: it is the first one since the last batch."""
        self.learned = True
        self.off = False  # an optimizer that calls the model, for example
        if self.open:
            self.mode_ends(learns=True)
        writer = self._session.writer
        if self.pending and unused and writer is not None:
            writer.words[_NO_GRAD_AT] += self.pending
        self.pending = 0


def _in_inference_mode() -> bool:
    from torch import is_inference_mode_enabled

    return is_inference_mode_enabled()
