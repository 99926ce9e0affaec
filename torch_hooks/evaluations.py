"""Compute that the training does not learn from, and that no data loader shows.

Two signs are seen: a module is put into evaluation mode (`Module.eval`), or gradients are off. An evaluation ends when
that module is put into training mode again, or at the next thing that the loop does: it asks for a batch, a backward
pass begins, or gradients are switched off in training mode.

What runs without gradients on a batch that a backward pass then uses is a rollout: a generation, a teacher,
log-probabilities. So is what looks find to collect experience from environments: see `Below.acts`. What else runs
without gradients on no batch is an evaluation if it is seldom and long. Otherwise it stays compute, and the ledger has
another word for it. The updates of optimizers and averages of weights are left out: they follow a backward pass, or
take hardly any time.
"""

from __future__ import annotations

import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

from ..ledger.causes import PHASE, WORK_PHASES
from ..ledger.layout import WORD_AT
from .acting import Acting
from .afterwards import Afterwards
from .below import averages, collects, evaluation_of, infers, is_below, users_frame
from .machine import COMPUTE, EVAL, HOST, ROLLOUT, Guess

if TYPE_CHECKING:
    from types import CodeType

    from .session import Session

_NO_GRAD_AT, _BATCHES_AT, _EVAL_AT = (WORD_AT[name][0] for name in ("no_grad_ns", "batches", "eval_batches"))
_STEP_NS_AT, _STEPS_AT = WORD_AT["step_ns"][0], WORD_AT["steps"][0]
_WORKS = frozenset(PHASE[phase] for phase in WORK_PHASES)
LEAST_NS, LEAST_PART = 1_000_000, 50
"""Shorter stretches without gradients do not count, and none below a mean step divided by LEAST_PART: models have them
inside their forward passes."""
SELDOM_STEPS, SELDOM_PART = 2, 10
"""What runs without gradients, on no batch, is an evaluation if the last SELDOM_STEPS steps did not have it, or if it
is an inference between two steps: looks find a module running forward, or names tell. It must also take at least a mean
step divided by SELDOM_PART. An average of the weights comes more often, or is shorter."""
LONG = 8
"""It is also one if it takes a mean step, and LONG times as long as such stretches usually do: a loop that averages its
weights in each step may evaluate now and then, too."""
_MOST_NAMED, _MOST_PLACES = 16, 256
_NEVER = -1 << 40
_ENDS_NS = 50_000
"""By how much the phase of a stretch may last longer than what is measured of it. A rest would count as evaluation."""
_SMOOTH = LONG
"""About how many steps the mean of what runs without gradients is taken over."""

Place = tuple[int, int]
"""The ``id`` of a function's code, and the instruction that it is at. The code is not kept: if another one has its
``id`` later, one stretch is not measured."""


class Evaluations:
    """Finds stretches of compute that is not learned from. Its callers catch its errors.

    ``unused``: the loop has a batch that no backward pass has used yet. What it does then is a part of the step.
    """

    __slots__ = (
        "_acts",
        "_attacked_at",
        "_base",
        "_batches",
        "_begun",
        "_brief",
        "_brief_places",
        "_first",
        "_found",
        "_guess",
        "_idle",
        "_inferred",
        "_infers",
        "_loaded",
        "_looks",
        "_mode_base",
        "_mode_batch",
        "_mode_begun",
        "_named",
        "_named_at",
        "_place",
        "_seldom",
        "_session",
        "_short",
        "_steps",
        "_sure",
        "_together",
        "_trained",
        "_usual",
        "acting",
        "after",
        "attacked",
        "found",
        "learned",
        "module",
        "off",
        "open",
        "pending",
        "pending_idle",
        "since",
    )

    def __init__(self, session: Session):
        self._session = session
        self.acting = Acting(session)
        self.after = Afterwards(session)
        self._acts: dict[Place | None, bool] = {}
        """By where gradients are switched off (None: in evaluation mode): whether the last stretch that was looked at
        was a rollout."""
        self._infers: dict[Place | None, bool] = {}  # in the same way: whether it was an inference
        self._looks = (0, 0, 0)  # at its beginning: all looks, and those that found an environment, or a module
        self._brief_places: set[Place] = set()
        """Where gradients were switched off for what was short the last time. There it is not measured how long the
        training thread is idle: that takes as long as a short stretch itself."""
        self.forget()

    def forget(self) -> None:
        self.open = False
        """Whether a module was put into evaluation mode, and the loop has not gone on since."""
        self.learned = False
        """Whether a backward pass has begun since the last step or batch. What follows it updates the weights."""
        self.since = 0
        """When gradients were switched off in what is too short to be measured on an accelerator; otherwise 0."""
        self._brief = True  # whether the last stretch of that kind was short
        self.pending = self.pending_idle = 0
        """ns without gradients on a batch of which it is not known whether the loop learns from it, and how long the
        training thread was idle in them."""
        self.module: weakref.ref[Any] | None = None
        """The last one that was put into evaluation mode, and was not seen to be trained since."""
        self.attacked: tuple[weakref.ref[Any], int, int] | None = None
        """A module with a backward pass in evaluation mode, on a batch that came in that mode; the value of `computed`
        and the number of batches before that batch. None again when an optimizer steps."""
        self._attacked_at = _NEVER  # the step in which such a backward pass was last found to be of an evaluation
        self._steps = _NEVER  # the step in which something ran without gradients on no batch
        self._seldom = True  # whether none of the SELDOM_STEPS before it had that
        self._together = 0  # ns of it in that step
        self._usual = 0  # its mean in the last such steps
        self._inferred = False  # whether the last stretch, or one of its code, was an inference
        self._sure = False  # whether it ran in inference mode, in which no average of the weights is made
        self._mode_begun = 0
        self._mode_batch = False  # whether it began with a batch that came in evaluation mode
        self._mode_base = self._base = HOST  # the phases before an evaluation, and before gradients were off
        self._loaded = False  # whether a loader has ended in the open stretch
        self._short = 0  # ns in stretches of compute that were each too short, since the loop learned: a policy's
        self.off = False
        """Whether gradients are off, and it is measured what runs meanwhile."""
        self._first = 0, 0  # the ns and the number of all steps when the mean of a step was first asked for
        self._named: CodeType | None = None  # the function by whose name the open one was found
        self._named_at = _NEVER  # the step of the last such one that a backward pass followed
        self._trained: list[CodeType] = []  # such functions in which the loop has learned
        self._guess: Guess | None = None
        self._begun = 0  # the value of `computed` when gradients were switched off
        self._idle: int | None = None  # that of `_idled`, if it was measured
        self._place: Place = (0, 0)
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

    def _idled(self, computed: int) -> int:
        """ns of compute up to now in which the training thread was idle, for differences. 0 on an accelerator."""
        task = self._session.task
        if task is None or self._session.machine.device is not None:
            return 0
        return computed - task.queue() - time.thread_time_ns() + task.booked_ns

    # -- evaluation mode

    def mode_begins(self, module: Any, unused: bool) -> None:
        """A module is put into evaluation mode, by any thread."""
        machine = self._session.machine
        if self.open or unused or not machine.stepping or not machine.mine():
            return
        if self.after.open is not None:
            self.after.pauses()
        if machine.phase in (COMPUTE, HOST):
            base = machine.phase
        elif self.off:
            base = self._base
        else:
            return
        self.module = weakref.ref(module)
        self._opens(base)

    def _opens(self, base: int, *, with_batch: bool = False) -> None:
        """An evaluation begins. ``base``: the phase after it. ``with_batch``: with a batch that has just come."""
        machine = self._session.machine
        machine.base(EVAL)
        self._mode_base, self._mode_batch = base, with_batch
        self.open, self._mode_begun = True, self.computed()
        machine.evaluating = True
        self._set_apart()

    def mode_ends(self, *, learns: bool = False) -> None:
        """The loop goes on. ``learns``: with a backward pass. If the module is still in evaluation mode then, it was
        not evaluated but trained in that mode, unless `attack_ends` finds something else."""
        self.open = False
        machine = self._session.machine
        ns = max(0, self.computed() - self._mode_begun)
        named, self._named = self._named, None
        if learns and named is not None and self._is_training(named):
            self.reclassify(EVAL, COMPUTE, ns)
            if len(self._trained) < _MOST_NAMED:
                self._trained.append(named)
        elif learns and not self._trains():
            self.reclassify(EVAL, COMPUTE, ns)
            writer = self._session.writer
            if self._mode_batch and self.attacked is None and self.module is not None and writer is not None:
                self.attacked = self.module, self._mode_begun, writer.words[_BATCHES_AT] - 1
            self.module = None
        elif self._is_rollout(in_mode=True):
            self.reclassify(EVAL, ROLLOUT, ns)
        else:
            self.found += ns
        if machine.phase == EVAL:
            machine.base(self._mode_base)
        machine.evaluating = machine.apart = False

    def _is_training(self, named: CodeType) -> bool:
        """A backward pass begins after gradients were taken in a function with the name of an evaluation. Whether the
        loop learns from these: the pass is in this function, too, or this comes in each step."""
        step, before = self._session.machine.steps, self._named_at
        self._named_at = step
        return step - before == 1 or is_below(sys._getframe(2), named)

    def attack_ends(self) -> None:
        """The loop asks for a batch, and no optimizer has stepped since a backward pass in evaluation mode. If the
        module is in training mode again, that was a test with adversarial examples. It comes seldom: in each step it
        is training, for example with accumulated gradients."""
        assert self.attacked is not None
        module, begun, batches = self.attacked
        if (found := module()) is not None and not found.training:
            return
        self.attacked = None
        step, before = self._session.machine.steps, self._attacked_at
        self._attacked_at = step
        writer = self._session.writer
        if found is None or writer is None or step - before == 1:
            return
        ns = max(0, self.computed() - begun)
        self.found += ns
        self.reclassify(COMPUTE, EVAL, ns)
        writer.words[_EVAL_AT] += writer.words[_BATCHES_AT] - batches

    def reclassify(self, phase: int, right: int, ns: int, idle: int = 0) -> None:
        """``ns`` of the open step in ``phase`` were of another phase. ``idle``: see `Books.reclassify`."""
        self._session.machine.reclassify(phase, right, ns, idle)

    def goes_on(self) -> bool:
        """A batch has come with gradients. Whether it is evaluated, because the module is still in evaluation mode. If
        a backward pass follows, `learns` corrects that."""
        machine = self._session.machine
        if self._trains() or not machine.mine():
            self.module = None
            return False
        self._opens(COMPUTE, with_batch=True)
        return True

    def takes_gradients(self) -> bool:
        """`torch.autograd.grad` runs: for the forces of atoms, for example, or to adapt to a task. In a function with
        the name of an evaluation, it begins one. Returns whether it has."""
        machine = self._session.machine
        if self.off or not machine.stepping or not machine.mine() or (self.open and self.module is not None):
            return False
        if not self.open and machine.phase not in (COMPUTE, HOST):
            return False
        if self.after.open is not None:
            self.after.pauses()
        named = evaluation_of(sys._getframe(2))
        if named in self._trained:
            named = None
        if self.open:
            if named is None:
                self.mode_ends()
            return False
        if named is None:
            return False
        self.module, self._named = None, named
        self._opens(machine.phase)
        return True

    def mode_may_end(self) -> None:
        """A module is put into training mode, by any thread. While gradients are off, the evaluation goes on."""
        if self.open and not self.off and self._session.machine.mine():
            self.trains_again()
            if not (self.open or self.acting.began):
                self.after.begins()

    def trains_again(self) -> None:
        """A module runs forward with gradients. Ends the evaluation if its module is in training mode again."""
        if self._trains():
            self.mode_ends()

    def _trains(self) -> bool:
        """Whether the module is in training mode again, or does not exist any more."""
        module = self.module() if self.module is not None else None
        return module is None or module.training

    # -- without gradients

    def gradients_off(self, place: Place) -> None:
        """Gradients are switched off, by any thread."""
        machine, writer = self._session.machine, self._session.writer
        if self.learned or not machine.stepping or writer is None or not machine.mine():
            return
        self._place = place
        if self.after.open is not None:
            self.after.pauses()
        if self.open:
            self.trains_again()
        base = machine.phase
        step, self._inferred = machine.steps, False
        if step != self._steps:
            self._usual += (self._together - self._usual) // (_SMOOTH if self._usual else 1)
            self._seldom, self._together, self.acting.before = step - self._steps > SELDOM_STEPS, 0, 0
        # Between two steps, `no_grad` may also be an average of the weights, in Python.
        self._sure = _in_inference_mode()
        if base not in (COMPUTE, HOST) or (machine.device is not None and self.acting.began):
            return  # between two steps of an environment it is the policy
        measured = place not in self._brief_places
        if base == HOST:
            if machine.device is not None and self._brief and not (self._seldom or self._sure):
                self._steps, self.since = step, time.monotonic_ns()
                return
            machine.base(EVAL, measured=measured)
            machine.evaluating = True
            self._guess = machine.guess = Guess()
        self.off, self._loaded, self._base, self._begun = True, False, base, self.computed()
        self._idle = self._idled(self._begun) if base == COMPUTE and measured else None
        self._set_apart()
        self._found, self._batches = self.found, writer.words[_BATCHES_AT]

    def gradients_on(self, unused: bool) -> bool:
        """Gradients are switched on, by any thread. Returns whether the last batch was used without gradients."""
        machine, writer = self._session.machine, self._session.writer
        if writer is None or not machine.mine():
            return False
        if not self.off:
            if self.since:
                self._brief, self.since = time.monotonic_ns() - self.since < LEAST_NS, 0
            if self.after.stretches and self.after.open is None:
                self.after.goes_on()
            return False
        self.off = False
        evaluated, self._loaded = self._loaded, False
        words = writer.words
        batches = words[_BATCHES_AT] - self._batches
        if self.open:  # what has run since then is an evaluation
            self._settle(EVAL)
            self.trains_again()
            if not (self.open or self.acting.began):
                self.after.begins()
            return batches > 0
        now = self.computed()
        ns = now - self._begun - (self.found - self._found)
        if ns >= LEAST_NS:
            self._brief_places.discard(self._place)
        elif len(self._brief_places) < _MOST_PLACES:
            self._brief_places.add(self._place)
        acts = self.acting.stepped and not batches  # what runs is a policy: see there
        if self._base == HOST:
            if acts:
                self.reclassify(EVAL, HOST, ns + _ENDS_NS)
                self._settle(HOST)
            elif ns >= LEAST_NS and self._is_rollout(in_mode=False):
                self.reclassify(EVAL, ROLLOUT, ns)
                self._settle(ROLLOUT)
            else:
                otherwise = HOST if machine.device is None else COMPUTE  # looks find out how much of it is idle
                found = self._between(ns, EVAL, otherwise)
                evaluated = evaluated or found
                self._settle(EVAL if found else otherwise)
                self._brief = ns < LEAST_NS
        elif not acts and ns < (least := max(LEAST_NS, self.least_ns())):
            if not batches:
                self._add_short(ns, least)
        elif not acts:
            idle = self._idled(now) - self._idle if self._idle is not None else 0
            if not batches and self._is_rollout(in_mode=False):
                self.reclassify(COMPUTE, ROLLOUT, ns, idle)
            elif not batches and (unused or self._each_step()):
                self.pending, self.pending_idle = self.pending + ns, self.pending_idle + idle
            elif batches:
                words[_NO_GRAD_AT] += ns
            else:
                evaluated = self._between(ns, COMPUTE, COMPUTE, idle)
        if machine.phase == EVAL:
            machine.base(self._base)
        machine.evaluating = machine.apart = False
        if not self.acting.began:
            if evaluated or batches > 0:
                self.after.begins()
            elif self.after.stretches:
                self.after.goes_on()
        return batches > 0

    def _add_short(self, ns: int, least: int) -> None:
        """A policy may answer in less than is worth a look, many times before the loop learns."""
        self._short += ns
        if self._short >= least:
            if self._is_rollout(in_mode=False):
                self.reclassify(COMPUTE, ROLLOUT, self._short)
            self._short = 0

    def _has_no_loader(self) -> bool:
        """Whether the hooks know no loader of this loop."""
        writer = self._session.writer
        return writer is not None and not writer.words[_BATCHES_AT]

    def _each_step(self) -> bool:
        """Whether a loop without a loader runs a module forward without gradients in each step: a teacher, or a
        reference model."""
        if self._seldom or not self._inferred or not self._has_no_loader():
            return False
        self._steps = self._session.machine.steps
        return True

    def _set_apart(self) -> None:
        machine = self._session.machine
        self._looks = machine.apart_looks, machine.acting_looks, machine.forward_looks
        machine.apart = True

    def _is_rollout(self, *, in_mode: bool) -> bool:
        """Whether most looks at the stretch that ends found it below an environment, or what collects experience from
        one. If none did, the names in the code that ends it decide, but not those in the code that ends evaluation
        mode. Without a look it is like the last one."""
        machine = self._session.machine
        now = machine.apart_looks, machine.acting_looks, machine.forward_looks
        looks, acting, forward = (after - before for after, before in zip(now, self._looks, strict=True))
        place = None if in_mode else self._place
        known = self._acts.get(place)
        if looks > 0 or known is None:
            user = None if in_mode else users_frame(sys._getframe(1))
            inferred = 2 * forward >= max(1, looks) or infers(user)
            known = 2 * acting >= max(1, looks) or collects(user, inferred=inferred)
            if place in self._acts or len(self._acts) < _MOST_PLACES:
                self._acts[place], self._infers[place] = known, inferred
        self._inferred = self._infers.get(place, False)
        return known

    def _between(self, ns: int, phase: int, otherwise: int, idle: int = 0) -> bool:
        """``ns`` without gradients on no batch were counted in ``phase``. They are of ``otherwise``, unless they are an
        evaluation. Returns whether they are. ``idle``: see `Books.reclassify`."""
        self._steps = self._session.machine.steps
        self._together += ns
        step_ns = self._mean_step()
        known = self._sure or (self._inferred and (self._seldom or self._base == HOST))
        known = known or (self._seldom and not averages(users_frame(sys._getframe(1)), self._place))
        if self._together >= max(LEAST_NS, step_ns // SELDOM_PART if known else max(step_ns, LONG * self._usual)):
            self.found += ns
            self.acting.before += ns
            self.reclassify(phase, EVAL, ns if phase != EVAL else 0, idle)
            return True
        if phase != otherwise:
            self.reclassify(phase, otherwise, ns + _ENDS_NS)
        elif (writer := self._session.writer) is not None:
            writer.words[_NO_GRAD_AT] += ns
        return False

    def _settle(self, phase: int) -> None:
        """It is known now of which phase the stretch was."""
        if self._guess is not None:
            self._guess.phase = phase
            self._guess = self._session.machine.guess = None

    def loader_ends(self) -> None:
        """The loader of an evaluation is exhausted. While gradients are off, what follows belongs to it: the last
        batch of a loader that fetches ahead, or metrics."""
        from torch import is_grad_enabled

        machine, writer = self._session.machine, self._session.writer
        if self.open or writer is None or not machine.mine():
            return
        if is_grad_enabled():
            self.after.begins()
            return
        machine.base(EVAL)
        machine.evaluating = self.off = self._sure = self._loaded = True
        self._set_apart()
        self._guess = machine.guess = Guess()
        self._base, self._begun = HOST, self.computed()
        self._found, self._batches, self._together = self.found, writer.words[_BATCHES_AT], 0

    def least_ns(self) -> int:
        """What takes less is not worth a look."""
        return self._mean_step() // LEAST_PART

    def _mean_step(self) -> int:
        """Of the steps since this was first asked. Those before also import, compile and warm up."""
        writer = self._session.writer
        if writer is None:
            return 0
        now = writer.words[_STEP_NS_AT], writer.words[_STEPS_AT]
        if not self._first[1]:
            self._first = now
        (before, first), (spent, steps) = self._first, now
        return (spent - before) // (steps - first) if steps > first else spent // max(1, steps)

    # -- the loop

    def learns(self, unused: bool) -> None:
        """A backward pass begins. ``unused``: it is the first one since the last batch."""
        self.learned, self._short = True, 0
        if self.after.stretches:
            self.after.settle()
        if self.attacked is not None and (module := self.attacked[0]()) is not None and module.training:
            self.attacked = None  # examples to learn from, in training mode
        if self.off:  # an optimizer that calls the model, for example
            self.off = False
            machine = self._session.machine
            if machine.phase == EVAL and not self.open:
                self.reclassify(EVAL, COMPUTE, self.computed() - self._begun)
                machine.base(COMPUTE)
            self._settle(COMPUTE)
            machine.evaluating = machine.apart = False
        if self.open:
            self.mode_ends(learns=True)
        if self.acting.began:
            self.acting.moves()
        if self.pending and (unused or self._has_no_loader()):
            self.reclassify(COMPUTE, ROLLOUT, self.pending, self.pending_idle)
        self.pending = self.pending_idle = 0


def _in_inference_mode() -> bool:
    from torch import is_inference_mode_enabled

    return is_inference_mode_enabled()
