"""The training loop as the hooks see it: batches arrive, backward passes run, optimizers step, and steps end.

No public method raises, except for what a signal handler of the program has raised meanwhile (handlers.py), and none
does anything after its hook is switched off. Each step runs most methods, so they avoid Python calls where they can
(see `PhaseMachine.cut`). Each catches its own errors, because a decorator would cost another call.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from ..ledger.causes import CAUSE, COLLECTIVE_OP, PHASE, WORK_CAUSES
from ..ledger.layout import WORD_AT
from .books import Splitter, Sums
from .evaluations import Evaluations, Place
from .machine import BASES, COMPUTE, EVAL, HOST, NOT_ENTERED, ROLLOUT, STARTUP, PhaseMachine
from .meters.files import LONG_NS, WriteMeter
from .skips import AT as SKIPPED_AT
from .skips import Skips
from .steps import COMPILED, NEVER, Captured, StepDetector
from .trainings import Trainings
from .updates import Updates
from .wait_codes import UNKNOWN_WAIT, WITHOUT_PEER, WaitCode, slot_of

if TYPE_CHECKING:
    from .meters.source import SourceMeter
    from .null_machine import NullMachine
    from .session import Session

_BATCHES_AT, _EVAL_AT, _EVAL_DATA_AT, _SAMPLES_AT = (
    WORD_AT[name][0] for name in ("batches", "eval_batches", "eval_data_ns", "samples")
)
_BACKWARDS_AT, _STEPS_BY_AT = WORD_AT["backwards"][0], WORD_AT["steps_by"][0]
_REDUCED_AT, _AGAIN_AT = WORD_AT["reduced"][0], WORD_AT["reduced_again"][0]
_HOST_WRITE_AT, _HOST_WRITE_BYTES_AT = WORD_AT["host_write_ns"][0], WORD_AT["host_write_bytes"][0]
_HOST_AT = WORD_AT["cause_ns"][0] + CAUSE["host"]
_COMPUTE_AT, _RECOMPUTE_AT, _EVALUATED_AT, _ROLLED_OUT_AT = (WORD_AT["cause_ns"][0] + CAUSE[c] for c in WORK_CAUSES)
_BASE_AT, _STEPS_AT = WORD_AT["base_step"][0], WORD_AT["steps"][0]
_DATA = PHASE["data"]
_ALL_REDUCE = COLLECTIVE_OP["all_reduce"]

_REGULAR_CYCLES = 8
_WAITING_AT_MOST = 1024
_FETCHED_PART = 30
"""If the compute on a batch is less than that on the step's last batch divided by this, the batch was only fetched."""


def _in_thread_of_python() -> bool:
    """Whether the caller runs in a thread that Python has started, and not in one of torch's: where a backward pass has
    another one in it, or an optimizer, these run in the thread of its device."""
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return thread is not None and not isinstance(thread, threading._DummyThread)


class Loop:
    """The object that the hooks of the loader, the backward pass and the optimizer call."""

    def __init__(self, session: Session):
        self._session = session
        self.compiled_step = [False]
        """Optimizer steps inside compiled graphs, which cannot call the hooks. The next call of a hook counts them."""
        self.forget()

    def forget(self) -> None:
        self.updates = Updates()
        self.evaluations = Evaluations(self._session)
        self.trainings = Trainings(self._session)
        self.steps = StepDetector(self.trainings.paused)
        self.refreshing = False
        """Whether `update_bn` runs. Its batches have no gradients, and are the training's."""
        self.capture: Captured | None = None
        """What is being captured into a CUDA graph. It does not run now."""
        self._replays = False  # whether a graph has been replayed
        self._owed = False  # whether a replay has computed gradients, and no step has ended since
        self._optimizes = False  # whether an optimizer's step was seen since the first replay, in a graph or not
        self._reduced: dict[int, tuple[int, WaitCode]] = {}
        """Gradients that the next backward pass reduces: id of the DDP module -> (bytes, code of its wait)."""
        self._kept: set[int] = set()
        """DDP modules whose gradients were reduced and have not been removed since, by ``id``."""
        self._reducers: set[WaitCode] = set()
        """The wait codes of DDP modules whose forward pass was seen."""
        self._fed = False  # whether a batch was delivered since the last boundary
        self._unused_batch = False  # whether no backward pass has begun since the last batch was delivered
        self._asked_at = NEVER  # when the loop called what may be a wait for a batch
        self._delivered = 0  # the value of `_computed` when the last batch was delivered
        self._trainable = False  # whether gradients were enabled then
        self._waiting: list[int] = []
        """Batches of this step with gradients and without a backward pass yet: ns of compute on each. A pipeline runs
        several of them forward before the first backward pass. Those that never get one were evaluated."""
        self._left_at = NEVER  # the step in which batches were left last without a backward pass
        self._foreign: dict[int, int] = {}
        """Threads that are not recorded, by identifier: how many backward passes of each are open."""
        self._others_train = False  # whether one of them ever did
        self._source: object = None  # what stands for the loader of the last batch
        self._sources = 0  # how often it has changed in this step
        self._inside = 0  # how many evaluations are open that somebody has named
        self._before: list[tuple[bool, bool]] = []
        """`_unused_batch` and `_trainable` at the beginning of each evaluation and rollout that is open and named."""
        self._on_cpu = True  # whether no optimizer has parameters on a device
        self._graded = False  # whether `autograd.grad` has run since the last boundary
        self._trained = False  # whether a backward pass has ever begun
        self._exhausted = False  # whether a loader has ended before the first backward pass, and none has begun since
        self._begun: Sums | None = None  # the sums when the loop asked for its first batch after that
        self._skips = Skips()
        self._writes = WriteMeter()
        self._host_since = NEVER  # when the open stretch of host time began, ns of CLOCK_MONOTONIC
        self._hosted_before = 0  # the value of `_hosted` at that time
        self._host_between = True  # whether the loop asks for its batch after the step, not before
        self._regular = 0

    # -- data

    def batch_wanted(self, meter: SourceMeter | None = None) -> int:
        """The loop asks for a batch. Returns what to pass to `batch_came` or `no_batch`. ``meter`` begins then."""
        session, old = self._session, NOT_ENTERED
        before = session.machine.phase
        try:
            if session.asleep:
                session.wake()
            if (saves := session.saves).call is not None or saves.in_memory is not None:
                saves.loop_goes_on()
            machine = session.machine
            if not machine.stepping:
                session.begin()
            if self.compiled_step[0] and machine.mine():
                self.take_note()
            if self._owed and machine.mine():
                self._end_owed()
            if self.updates.owed and machine.mine():
                self._end_unseen()
            if machine.phase == _DATA or (
                session.off and ("dataloader" if meter is None else "sources") in session.off
            ):
                return NOT_ENTERED
            old = machine.cut(_DATA)
            if self._exhausted:
                self._exhausted = False
                self._begun = machine.sums()
            if old != NOT_ENTERED:  # otherwise, for example, another thread asks, which fetches batches for the loop
                self._asked(old)
                if meter is not None:
                    meter.begin()
                    machine.fetching = meter
            return old
        except BaseException as error:  # the fence around the training
            if session.absorbs("dataloader", error):
                return NOT_ENTERED
            if session.machine.phase == _DATA != before:
                self.no_batch(old if old != NOT_ENTERED else before, None)
            raise

    def _asked(self, old: int) -> None:
        """The loop has asked for a batch in the phase ``old``. Call it after the end of that phase."""
        session = self._session
        if not self.trainings.begun:
            self.trainings.asked_ns = session.machine.since
        if old == HOST:
            if session.machine.since - self._host_since >= LONG_NS:
                self._long_host_ends()
            self._host_since = NEVER
        if self.evaluations.after.open is not None:
            self.evaluations.after.pauses()
        if self.evaluations.open:
            self.evaluations.mode_ends()
        if self.evaluations.attacked is not None:
            self.evaluations.attack_ends()
        self._skips.asked(session.machine.since, unused=self._unused_batch and self._trainable)
        if self._unused_batch:
            self._unused_batch = False
            pending, idle = self.evaluations.pending, self.evaluations.pending_idle
            self.evaluations.pending = self.evaluations.pending_idle = 0
            computed = self._computed() - self._delivered
            if old == ROLLOUT:
                return
            if not self._trainable:
                self._evaluated(1, computed, moves=False)
            elif 2 * pending > computed:  # most of what was done with it was without gradients
                self._evaluated(1, computed, idle=idle)
            elif self._host_between:
                if len(self._waiting) < _WAITING_AT_MOST:
                    self._waiting.append(computed)
                else:
                    self._evaluated(1, computed)

    def may_wait(self, meter: SourceMeter) -> bool:
        """The loop calls what may be a wait for a batch. Only its result shows whether it was: see ``waited``.

        Returns whether this is measured. If it was not a wait for a batch, do nothing: the phase continues.
        """
        session = self._session
        try:
            machine = session.machine
            if (session.off and "sources" in session.off) or machine.cut(machine.phase) == NOT_ENTERED:
                return False
            self._asked_at = machine.since
            meter.begin()
            return True
        except Exception as error:  # the fence around the training
            session.fault("sources", error)
            return False

    def in_base(self) -> bool:
        """Whether steps have begun, and no bracket is open."""
        machine = self._session.machine
        return machine.stepping and machine.phase in BASES

    def still_waits(self) -> bool:
        """Whether no hook was called since ``may_wait``. The training thread must ask."""
        return self._session.machine.since == self._asked_at

    def waited(self, meter: SourceMeter, samples: int, training: bool) -> None:
        """The call was a wait for a batch, which has arrived.

        Does nothing if another hook has interrupted the wait: what is measured then is not all of it.
        """
        session = self._session
        try:
            machine = session.machine
            old = machine.phase
            if machine.since != self._asked_at or old not in BASES:
                return
            self._asked(old)
            machine.was(_DATA)
            self.batch_came(old, meter, samples, training)
            self.others_may_follow()
        except Exception as error:  # the fence around the training
            session.fault("sources", error)

    def others_may_follow(self) -> None:
        """The loop may collect several of what has arrived for one step. So the first ones were not evaluated."""
        if self._session.machine.phase == COMPUTE:
            self._unused_batch = False

    def batch_came(self, old: int, splitter: Splitter | None, samples: int, training: bool) -> None:
        """A batch has arrived. ``samples`` is 0 if it is not known."""
        session = self._session
        writer = session.writer
        if old == NOT_ENTERED or writer is None:
            return
        try:
            machine = session.machine
            machine.fetching = None
            evaluations = self.evaluations
            if self._inside or (evaluations.module is not None and training and evaluations.goes_on()):
                training = False
            if self.refreshing:
                training = True
            begun = machine.since
            machine.cut((COMPUTE if training else EVAL) if old in BASES else old, splitter)
            self._fed, self._unused_batch = True, not self.refreshing
            if splitter is not self._source:
                self._source = splitter
                self._sources += 1
            evaluations.learned = False
            self._trainable = training
            self._skips.came_ns = machine.since
            words = writer.words
            if not training:
                words[_EVAL_DATA_AT] += machine.since - begun
            words[_BATCHES_AT] += 1
            words[_SAMPLES_AT] += samples
            # `_computed`, without its calls
            self._delivered = (
                words[_COMPUTE_AT] + words[_RECOMPUTE_AT] + words[_EVALUATED_AT] + words[_ROLLED_OUT_AT]
                if machine.device is None
                else machine.since
            )
        except BaseException as error:  # the fence around the training
            if not session.absorbs("dataloader", error):
                if session.machine.phase == _DATA:
                    self.no_batch(old, None)
                raise

    def no_batch(self, old: int, splitter: Splitter | None) -> None:
        """The loader is exhausted or raised. The time that follows is host time."""
        try:
            machine = self._session.machine
            if old != NOT_ENTERED:
                machine.fetching = None
            machine.leave_to(old, EVAL if self._inside else HOST, splitter)
            if old != NOT_ENTERED and not self._trainable and machine.phase == HOST:
                self.evaluations.loader_ends()
            if not self._trained:
                self._exhausted = True
            if old != NOT_ENTERED and not self._inside:
                self._host_begins(machine)
        except Exception as error:  # the fence around the training
            self._session.fault("dataloader", error)

    def _computed(self) -> int:
        """ns of compute so far, for differences. On an accelerator, which lags behind, the host's clock."""
        session = self._session
        if session.writer is None or session.machine.device is not None:
            return time.monotonic_ns()
        return session.machine.worked()

    def _hosted(self) -> int:
        """ns of host time so far, for differences, like ``_computed``."""
        session = self._session
        if session.writer is None or session.machine.device is not None:
            return time.monotonic_ns()
        return session.writer.words[_HOST_AT]

    def _host_begins(self, machine: PhaseMachine | NullMachine) -> None:
        """A stretch of host time begins. Call it after entering the phase."""
        writer = self._session.writer
        if writer is None:
            return
        since = self._host_since = machine.since
        self._hosted_before = writer.words[_HOST_AT] if machine.device is None else since
        writes = self._writes
        if since >= writes.due_ns or machine.saves != writes.saves:
            writes.begin(since, machine.saves)

    def _long_host_ends(self) -> None:
        """A long stretch ends, because the loop asks for a batch. Call it after entering the phase."""
        spent = self._hosted() - self._hosted_before
        size = self._writes.end(spent, self._session.machine.saves)
        if size and (writer := self._session.writer) is not None:
            writer.words[_HOST_WRITE_AT] += spent
            writer.words[_HOST_WRITE_BYTES_AT] += size

    def _evaluated(self, batches: int, ns: int, *, moves: bool = True, idle: int = 0) -> None:
        """Batches were evaluated. ``ns``: the compute on them. ``moves``: it was taken for training until now.
        ``idle``: see `Books.reclassify`."""
        if (writer := self._session.writer) is not None:
            writer.words[_EVAL_AT] += batches
            self.evaluations.found += ns
            if moves:
                self.evaluations.reclassify(COMPUTE, EVAL, ns, idle)

    def _evaluated_waiting(self) -> None:
        """No backward pass belongs to the batches that wait for one."""
        self._evaluated(len(self._waiting), sum(self._waiting))
        self._waiting.clear()

    def _left_over(self, step: int) -> None:
        """A step ends with batches without a backward pass. They are evaluated, unless each step has such batches: it
        has a second loader then. Gradients of all may also have come from `autograd.grad`."""
        regular = self._graded or (self._sources > 1 and (step == 0 or step - self._left_at == 1))
        self._left_at = step
        if regular:
            self._waiting.clear()
        else:
            least = (self._computed() - self._delivered) // _FETCHED_PART
            self._waiting = [ns for ns in self._waiting if ns >= least]  # others were only fetched ahead
            self._evaluated_waiting()

    def _count_skipped(self) -> None:
        skipped, writer = self._skips.end(), self._session.writer
        if skipped is not None and writer is not None:
            self._waiting.clear()  # they were not evaluated, either
            for at, number in zip(SKIPPED_AT, skipped, strict=True):
                writer.words[at] += number

    def named_begins(self, phase: int) -> int:
        """An evaluation or a rollout begins that the user, or a framework, has named. Returns what to pass to
        `named_ends`: NOT_ENTERED inside another one."""
        session = self._session
        try:
            if session.asleep and phase == ROLLOUT:
                session.wake(trains=True)
            machine = session.machine
            if machine.phase == phase == ROLLOUT or (phase == EVAL and self._inside):
                return NOT_ENTERED
            if phase == ROLLOUT and not machine.stepping:
                session.begin()
            evaluations = self.evaluations
            if evaluations.after.open is not None and machine.mine():
                evaluations.after.pauses()
            if evaluations.open and machine.mine():
                evaluations.mode_ends()
            old = machine.cut(phase)
            if old == NOT_ENTERED:
                return old
            evaluations.off = False
            if phase == EVAL:
                self._evaluated_waiting()
                self._inside += 1
            self._before.append((self._unused_batch, self._trainable))
            self._unused_batch = False
            return old
        except Exception as error:  # the fence around the training
            return session.fault("evaluation", error)

    def named_ends(self, phase: int, old: int) -> None:
        """``old``: what `named_begins` has returned. The batches of an evaluation count, also with gradients."""
        if old == NOT_ENTERED:
            return
        try:
            machine = self._session.machine
            machine.leave(COMPUTE if old == STARTUP and machine.stepping else old)
            if phase == EVAL:
                self._inside -= 1
                self._evaluated(len(self._waiting) + self._unused_batch, 0)
                self._waiting.clear()
            self._unused_batch, self._trainable = self._before.pop() if self._before else (False, False)
            self._delivered = self._computed()
        except Exception as error:  # the fence around the training
            self._session.fault("evaluation", error)

    def mode_begins(self, module: Any) -> None:
        """A module is put into evaluation mode."""
        try:
            if not (self.steps.depth or self._inside) and self.capture is None:
                self.evaluations.mode_begins(module, self._unused_batch)
        except Exception as error:  # the fence around the training
            self._session.fault("evaluation", error)

    def mode_may_end(self) -> None:
        """A module is put into training mode, by any thread."""
        try:
            self.evaluations.mode_may_end()
        except Exception as error:  # the fence around the training
            self._session.fault("evaluation", error)

    def gradients_off(self, place: Place) -> None:
        """``place``: where they are switched off."""
        try:
            if (
                not (self.steps.depth or self._inside or self.refreshing)
                and self.capture is None
                and "evaluation" not in self._session.off
            ):
                self.evaluations.gradients_off(place)
        except Exception as error:  # the fence around the training
            self._session.fault("evaluation", error)

    def refresh_begins(self) -> bool:
        """The training thread calls `update_bn`. Returns whether its batches are those of training."""
        try:
            session = self._session
            if self._inside or self.refreshing or self.evaluations.off or "evaluation" in session.off:
                return False
            self.refreshing = session.machine.mine()
            return self.refreshing
        except Exception as error:  # the fence around the training
            self._session.fault("evaluation", error)
            return False

    def gradients_on(self) -> None:
        try:
            if self.evaluations.gradients_on(self._unused_batch or bool(self._waiting)):
                self._unused_batch = False
        except Exception as error:  # the fence around the training
            self._session.fault("evaluation", error)

    def batch_handed_on(self) -> None:
        """A loader that fetches ahead delivers a batch that it got before its source was exhausted."""
        machine = self._session.machine
        if machine.phase == HOST:
            machine.base(COMPUTE)

    # -- steps

    def backward_begins(self, outputs: Any = None, accumulates: bool = True) -> None:
        """A backward pass begins at ``outputs``, for example at a loss. Without ``accumulates`` it returns gradients,
        as `autograd.grad` does: for forces in a validation, for example. Nothing is learned from it yet. See also
        `Updates`."""
        session = self._session
        try:
            if self.capture is not None:
                self.capture.backwards += 1
                return
            if session.asleep:
                session.wake(trains=True)
            writer, caller = session.writer, threading.get_ident()
            mine = caller == session.machine.owner
            if self.compiled_step[0] and mine:
                self.take_note()
            if writer is not None and not mine and self._trains_apart():
                if not (accumulates and self._moves()):
                    self._foreign[caller] = self._foreign.get(caller, 0) + 1  # of a thread that is not recorded
                    self._others_train = True
                    return
                writer, mine = session.writer, True
            if self.steps.backward_begins() or writer is None:
                return
            if (saves := session.saves).call is not None or saves.in_memory is not None:
                saves.loop_goes_on()
            if mine and not self.updates.off:
                if self.updates.owed:
                    self._end_unseen(by_backward=not accumulates)
                self.updates.backward_begins(outputs, accumulates)
            device = getattr(outputs[0], "device", None) if outputs else None
            if device is not None and device.type != "cpu":
                session.computes_on(device)
            writer.words[_BACKWARDS_AT] += 1
            if not accumulates:
                self._graded = True
                known = self._inside or "evaluation" in session.off
                if not known and self.evaluations.takes_gradients() and self._unused_batch:
                    self._unused_batch = False
                    self._evaluated(1, self._computed() - self._delivered)
                return
            if not self._trained and self._begun is not None:
                session.machine.begin_again(self._begun)
            self._learns()
        except Exception as error:  # the fence around the training
            session.fault("backward", error)

    def _learns(self) -> None:
        """A backward pass begins, or a replay with one in it."""
        session = self._session
        machine = session.machine
        if not machine.stepping:
            session.begin()
        trainings = self.trainings
        if not trainings.begun:
            trainings.begun = True
            trainings.asked_ns = trainings.asked_ns or time.monotonic_ns()
        self._trained = True
        self._graded = False
        evaluations = self.evaluations
        if (
            evaluations.open
            or evaluations.pending
            or evaluations.off
            or evaluations.acting.began
            or evaluations.attacked is not None
            or evaluations.after.stretches
        ):
            evaluations.learns(self._unused_batch or bool(self._waiting))
        else:  # as there, without a call
            evaluations.learned = True
        if machine.phase == HOST:
            # The batch of this backward pass was fetched before the last step ended. So the forward pass was compute,
            # although it was counted as host time. Do not repeat this mistake in this loop.
            self._host_between = False
            self._regular = 0
            machine.base(COMPUTE)
        elif self._fed and not self._host_between:
            self._regular += 1
            self._host_between = self._regular > _REGULAR_CYCLES
        if self._unused_batch:
            self._unused_batch = False
        elif self._waiting:
            self._waiting.pop()  # those that were evaluated came first
            self._skips.taken_in_advance()

    def reducer_seen(self, module: int, size: int, code: WaitCode, kept: bool) -> None:
        """A DDP module runs forward. Its next backward pass reduces ``size`` bytes of gradients; 0 in ``no_sync``.

        ``kept``: it still has gradients, to which those are added.
        """
        if self.evaluations.open:
            self.evaluations.trains_again()
        if not kept:
            self._kept.discard(module)
        if size:
            self._reduced[module] = size, code
        self._reducers.add(code)

    def reduced_in(self) -> WaitCode | None:
        """The code of the wait at the end of this backward pass; None if nothing is known to wait there.

        One interval contains the waits of all reducers. If they have different groups, it is not known which one
        caused the wait.
        """
        if not self._reducers:
            # The hooks do not see a DDP module inside a compiled graph. They see all waits of FSDP.
            states = self._session.states
            return None if "active" in (states["fsdp1"], states["fsdp2"]) else UNKNOWN_WAIT
        reduced = self._reduced
        if len(reduced) == 1:
            for _, code in reduced.values():
                return None if code == NOT_ENTERED else code
        codes = {code for _, code in reduced.values()}
        if not codes and "torch.distributed.pipelining" in sys.modules:
            codes = self._reducers  # stages run forward in no_sync, and reduce in their last backward pass
        codes = codes - {NOT_ENTERED}
        if len(codes) == 1:
            return next(iter(codes))
        if len(slots := {slot_of(code) for code in codes}) == 1:  # groups of the same ranks
            return WITHOUT_PEER[slots.pop()]
        return UNKNOWN_WAIT if codes else None

    def _count_reduced(self) -> None:
        """Counts the reduction of DDP's gradients as one all-reduce per backward pass and group."""
        if (writer := self._session.writer) is not None:
            writer.words[_REDUCED_AT] += 1
            if not self._kept.isdisjoint(self._reduced):
                writer.words[_AGAIN_AT] += 1
        self._kept.update(self._reduced)
        if len(self._reduced) == 1:
            for size, code in self._reduced.values():
                self._session.count_collective(_ALL_REDUCE, size, code)
            self._reduced.clear()
            return
        sizes: dict[WaitCode, int] = {}
        for size, code in self._reduced.values():
            sizes[code] = sizes.get(code, 0) + size
        for code, size in sizes.items():
            self._session.count_collective(_ALL_REDUCE, size, code)
        self._reduced.clear()

    def backward_ends(self) -> None:
        try:
            if self.capture is not None:
                return
            if self._foreign and (caller := threading.get_ident()) in self._foreign:
                self._foreign[caller] -= 1
                if not self._foreign[caller]:
                    del self._foreign[caller]
                return
            steps = self.steps
            ended = steps.backward_ends()
            if self._reduced and not steps.depth:
                self._count_reduced()
            if self._waiting:  # more backward passes of this step follow, each after its forward passes
                self.evaluations.learned = False
            if ended:
                self.updates.stop()
                self.boundary()
            elif not (self.updates.off or steps.depth) and self._session.machine.mine():
                self.updates.backward_ends()
        except Exception as error:  # the fence around the training
            self._session.fault("backward", error)

    def _moves(self) -> bool:
        """The caller, which is not the training thread, trains. Whether it becomes the training thread."""
        return not (self._trained or self._foreign or self._inside) and self._session.moves()

    def _trains_apart(self) -> bool:
        """Whether the caller, which is not the training thread, belongs to another training."""
        return not self.steps.depth or _in_thread_of_python()

    def optimizer_met(self, key: int, optimizer: Any) -> None:
        """An optimizer has taken its first step, by any thread."""
        try:
            if self.capture is None and self._session.machine.mine():
                self.trainings.meets(key, optimizer)
                self._on_cpu = self._on_cpu and self.trainings.on_cpu
                self._session.machine.optimizes_on_cpu = self._on_cpu
        except Exception as error:  # the fence around the training
            self._session.fault("step", error)

    def optimizer_stepped(self, optimizer: int) -> None:
        session = self._session
        try:
            if self.capture is not None:
                self.capture.optimizers.append(optimizer)
                return
            if self._others_train and not session.machine.mine() and self._trains_apart():
                return
            if self._replays:
                self._optimizes = True
            if not self.updates.off and self.updates.owed:
                self.updates.stop()
            self.evaluations.attacked = None
            if self.steps.optimizer_stepped(optimizer) and not (session.off and "step" in session.off):
                if optimizer in self.trainings.fresh:
                    self.trainings.ends_step(optimizer, self.steps.replaced, self.steps.alone)
                elif self.steps.turns:
                    self.steps.turns = False
                    self.trainings.take_back()
                self.boundary()
            else:  # of several: what it has learned is in the weights
                self.evaluations.learned = False
        except Exception as error:  # the fence around the training
            session.fault("step", error)

    def replay_begins(self, captured: Captured | None) -> None:
        """A CUDA graph is about to be replayed. ``captured``: what it contains, if that is known."""
        session = self._session
        try:
            if captured is None or not captured.backwards or not session.machine.mine():
                return
            if session.asleep:
                session.wake(trains=True)
            if self._owed:
                self._end_owed()
            if not self.steps.depth:
                self._learns()
            session.machine.follow_stream()
        except Exception as error:  # the fence around the training
            session.fault("cuda_graphs", error)

    def replayed(self, captured: Captured | None) -> None:
        """A CUDA graph has been replayed: it is work of the home stream from now on."""
        session = self._session
        try:
            if captured is None or not session.machine.mine():
                return
            self._replays = True
            if captured.optimizers:
                self._optimizes = True
                self.updates.stop()
            self._owed = self._owed or (captured.backwards > 0 and not self.steps.depth)
            if self.steps.replayed(captured) and not (session.off and "step" in session.off):
                self.boundary()
        except Exception as error:  # the fence around the training
            session.fault("cuda_graphs", error)

    def _end_owed(self) -> None:
        """The loop goes on after a replay that computed gradients. If no optimizer is ever seen, a step ends here."""
        self._owed = False
        if not (self._optimizes or self.steps.manual or (self._session.off and "step" in self._session.off)):
            self.boundary()

    def _end_unseen(self, *, by_backward: bool = False) -> None:
        """The loop goes on after a backward pass, and no optimizer has stepped. Ends the step if one has ended."""
        shown = self.updates.ended(by_backward=by_backward)
        session = self._session
        if shown and session.writer is not None and not (session.off and "step" in session.off):
            session.writer.words[_STEPS_BY_AT] = max(shown, session.writer.words[_STEPS_BY_AT])
            self.boundary()

    def update_begins(self, hook: str) -> None:
        """An engine begins to update its parameters. The steps of torch's optimizers in there end no step."""
        try:
            if self._session.machine.mine():
                self.updates.stop()
                self.evaluations.attacked = None
                self.steps.update_begins()
        except Exception as error:  # the fence around the training
            self._session.fault(hook, error)

    def update_ends(self, hook: str) -> None:
        session = self._session
        try:
            if session.machine.mine() and self.steps.update_ends() and not (session.off and "step" in session.off):
                self.boundary()
        except Exception as error:  # the fence around the training
            session.fault(hook, error)

    def close(self) -> None:
        """The recording ends."""
        if self.compiled_step[0]:
            self.take_note()
        self._session.saves.close()
        if self.updates.owed and self._session.machine.mine():
            self._end_unseen(by_backward=True)
        self._evaluated_waiting()

    def take_note(self) -> None:
        """Counts a step inside a compiled graph. It ends here, so what has run since then counts as a part of it."""
        self.compiled_step[0] = False
        self.optimizer_stepped(COMPILED)

    def step_ends(self, number: int | None) -> None:
        """The user marks the end of a step. ``number``: the number of the step that ends, from 1."""
        self.steps.manual = True
        self.updates.stop()
        writer = self._session.writer
        if number is not None and writer is not None and self._session.machine.stepping:
            done = self._session.machine.steps
            if not done:
                self._session.saves.numbered(number - 1)
            writer.words[_BASE_AT] = max(0, number - 1 - done)
        self.boundary()

    def boundary(self) -> None:
        """A step ends here."""
        session = self._session
        machine = session.machine
        if not machine.stepping:
            # The first call of whyidle.step() in a loop without loader and backward pass. The step that it ends began
            # unseen, so only the window begins here.
            session.begin()
            return
        if self.evaluations.after.stretches and machine.mine():
            self.evaluations.after.settle()
        if self.evaluations.open:
            self.evaluations.mode_ends()
        if (self._skips.count or self._waiting) and machine.mine():
            self._count_skipped()
            if self._waiting:
                self._left_over(machine.steps)
        if machine.boundary(HOST if self._fed and self._host_between else COMPUTE):
            self._sources = 0
            self._fed = self._unused_batch = self._owed = self._graded = self.evaluations.learned = False
            self.evaluations.attacked = None
            trainings = self.trainings
            trainings.begun, trainings.asked_ns, trainings.stepped_ns = False, 0, machine.since
            if machine.phase == HOST:
                self._host_begins(machine)
            session.after_step()
