"""The state of this process: its ledger, its phase machine, and what the hooks tell them.

A session is armed first (hooks are in place, nothing is recorded) and wakes at the first sign of training: a batch is
asked for, a backward pass or a collective begins. Launchers and data-loading workers, which show no such sign, thus
never get a ledger.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from ..ledger.causes import CHECKPOINT_KINDS, COLLECTIVE_OP, HOOK_STATES, HOOKS, PHASE
from ..ledger.directory import ledger_dir, reap
from ..ledger.layout import WORD_AT
from ..ledger.writer import LedgerWriter
from .books import Splitter
from .exchange import Exchange
from .identity import identify, nvml_uuid
from .machine import COLLECTIVE, COMPUTE, EVAL, HOST, NOT_ENTERED, NullMachine, PhaseMachine
from .meters.blocked import BlockedMeter
from .meters.collective import WaitMeter
from .notices import debug, say
from .restart import restart_of
from .steps import COMPILED, StepDetector
from .tasks import OwnTask, TaskClock
from .threads import OwnThreads

_STATE_AT = WORD_AT["hook_states"][0]
_HOOK = {name: index for index, name in enumerate(HOOKS)}
_STATE = {name: index for index, name in enumerate(HOOK_STATES)}
_CALLS_AT, _BYTES_AT = WORD_AT["collective_calls"][0], WORD_AT["collective_bytes"][0]
_BATCHES_AT, _EVAL_AT, _SAMPLES_AT = (WORD_AT[n][0] for n in ("batches", "eval_batches", "samples"))
_BACKWARDS_AT, _FAULTS_AT = WORD_AT["backwards"][0], WORD_AT["faults"][0]
_CHECKPOINTS_AT, _CHECKPOINT_BYTES_AT = WORD_AT["checkpoints"][0], WORD_AT["checkpoint_bytes"][0]
_CHECKPOINT_KIND = {name: index for index, name in enumerate(CHECKPOINT_KINDS)}
_DATA = PHASE["data"]
_REAP_AFTER_SECONDS = 24 * 3600.0
_FAULTS_TOLERATED = 10
"""A hook whose own code failed this often is switched off."""

_REGULAR_CYCLES = 8
_LOOK_EVERY = 32
"""Steps between two looks for a process group or a GPU that came late. The first steps look each time."""


class Session:
    """What the hooks talk to. No public method raises."""

    def __init__(self) -> None:
        self.machine: PhaseMachine | NullMachine = NullMachine()
        self.writer: LedgerWriter | None = None
        self.exchange: Exchange | None = None
        self.task: TaskClock | None = None
        self.asleep = False
        """Armed, and waiting for the first sign of training."""
        self.world_size = 1
        self.mixed = False
        """In this step a collective ran on some ranks only: the waits of the step cannot be compared."""
        self.resolved = 0
        """Functional collectives whose group is known and that have not been waited for."""
        self.states: dict[str, str] = dict.fromkeys(HOOKS, "absent")
        self._faults: dict[str, int] = {}
        self._off: set[str] = set()
        self.compiled_steps: list[bool] = []
        """Optimizer steps inside compiled graphs, which could not call us; taken note of when the loop next does."""
        self._forget()

    def _forget(self) -> None:
        self.steps = StepDetector()
        self.grad_bytes: dict[int, int] = {}
        """Gradients that the next backward pass reduces: id of the DDP module -> bytes."""
        self._grouped = False
        self._looked = self._look_in = 0
        self._fed = False  # a batch was delivered since the last boundary
        self._unused_batch = False  # a batch was delivered, and no backward pass has begun since
        self._host_between = True  # the loop asks for its batch after the step, not before
        self._regular = 0
        self._restored = False
        self._restored_early = False
        self._restore_step = -1
        self._saving_step = -1

    # -- life

    def wake(self) -> bool:
        """Creates the ledger and starts the accounting; -> whether this process is being recorded."""
        if not self.asleep:
            return self.writer is not None
        self.asleep = False
        if "torch" in sys.modules and _in_data_worker():
            return False
        directory = ledger_dir()
        try:
            who = identify()
            before = restart_of(directory, who)
            strings = {"run": who.run, "node": who.node, "device": "cpu", "uuid": ""}
            numbers = {
                "rank": who.rank,
                "world_size": who.world_size,
                "local_rank": who.local_rank,
                "device_index": -1,
                "attempt": before.attempt,
                "pid": who.pid,
                "pid_start_ticks": who.pid_start_ticks,
                "created_unix_ns": time.time_ns(),
                "start_ns": who.start_ns,
                "checkpoint_step": -1,
                "recompute_until": before.steps,
            }
            # Before there is a ledger of our own in there: to read that one would drop its lock.
            reap(directory, _REAP_AFTER_SECONDS)
            self.writer = LedgerWriter(directory, strings, numbers)
        except Exception as error:  # the fence around the training
            say(f"this rank is not recorded: no ledger in {directory} ({_why(error)}). Set WHYIDLE_DIR to a tmpfs.")
            if debug():
                traceback.print_exc()
            return False
        self._restore_step = before.checkpoint_step
        if self._restored_early:
            self._go_on()
        self.world_size = who.world_size
        self.machine = PhaseMachine(self.writer.words, who.start_ns)
        self.task = TaskClock(os.getpid(), threading.get_native_id())
        threads = OwnThreads()
        self.machine.waits = WaitMeter(self.task, threads)
        self.machine.blocked = BlockedMeter(self.task, threads)
        for hook, state in self.states.items():
            self.writer.words[_STATE_AT + _HOOK[hook]] = _STATE[state]
        self._find_group()
        _close_with_child(self.close)
        return True

    def close(self) -> None:
        """Accounts for everything and ends the ledger."""
        self.asleep = False
        try:
            if self.compiled_steps:
                self._take_note()
        except Exception as error:  # the fence around the training
            self.fault("step", error)
        machine, self.machine = self.machine, NullMachine()
        try:
            if self.exchange is not None:
                self.exchange.close()
                self.exchange = None
            machine.close()
            if self.writer is not None:
                self.writer.close()
            if self.task is not None:
                self.task.close()
        except Exception as error:  # the fence around the training
            self.fault("step", error)
        self.writer = self.task = None
        self.world_size = 1
        self._forget()

    def after_fork(self, armed: bool) -> None:
        """In a forked child: the ledger is the parent's. The child may wake on its own if it was armed for that."""
        self.machine = NullMachine()
        self.writer = self.exchange = self.task = None
        self.world_size = 1
        self._forget()
        self.asleep = armed

    # -- hooks

    def state(self, hook: str, state: str) -> None:
        self.states[hook] = state
        if self.writer is not None:
            self.writer.words[_STATE_AT + _HOOK[hook]] = _STATE[state]

    def fault(self, hook: str, error: BaseException) -> int:
        """A hook's own code failed: counted, and after some times the hook is off. -> NOT_ENTERED."""
        count = self._faults[hook] = self._faults.get(hook, 0) + 1
        if self.writer is not None:
            self.writer.words[_FAULTS_AT] += 1
        if debug():
            traceback.print_exception(error)
        if count == _FAULTS_TOLERATED:
            self.state(hook, "failed")
            self._off.add(hook)
            say(f"the hook '{hook}' failed {count} times and is off ({_why(error)}). The training is not affected.")
        return NOT_ENTERED

    def works(self, hook: str) -> bool:
        return self.states[hook] != "failed"

    # What hooks call in the midst of the training never raises, and does nothing once the hook is off. The fence stands
    # in each method, not in a decorator: it would cost every step another call.

    # -- data

    def batch_wanted(self) -> int:
        """The loop asks for a batch -> what to leave when it is there."""
        try:
            if self.asleep:
                self.wake()
            machine = self.machine
            if not machine.stepping:
                self._begin()
            if self.compiled_steps:
                self._take_note()
            if self._off and "dataloader" in self._off:
                return NOT_ENTERED
            if self._unused_batch and self._host_between and self.writer is not None:
                self.writer.words[_EVAL_AT] += 1
            self._unused_batch = False
            return machine.enter(_DATA)
        except Exception as error:  # the fence around the training
            return self.fault("dataloader", error)

    def batch_came(self, old: int, splitter: Splitter | None, samples: int, training: bool) -> None:
        """A batch is there. ``samples`` is 0 where it cannot be told."""
        if old == NOT_ENTERED or self.writer is None:
            return
        try:
            self.machine.leave_to(old, COMPUTE if training else EVAL, splitter)
            self._fed = self._unused_batch = True
            words = self.writer.words
            words[_BATCHES_AT] += 1
            words[_SAMPLES_AT] += samples
        except Exception as error:  # the fence around the training
            self.fault("dataloader", error)

    def no_batch(self, old: int, splitter: Splitter | None) -> None:
        """The loader is exhausted, or raised: what follows is the loop's own Python."""
        try:
            self.machine.leave_to(old, HOST, splitter)
        except Exception as error:  # the fence around the training
            self.fault("dataloader", error)

    # -- steps

    def _begin(self) -> None:
        self._find_device()
        self.machine.begin()

    def backward_begins(self) -> None:
        try:
            if self.asleep:
                self.wake()
            if self.compiled_steps:
                self._take_note()
            if self.steps.backward_begins() or self.writer is None:
                return
            machine = self.machine
            if not machine.stepping:
                self._begin()
            if machine.phase == HOST:
                # The batch of this backward pass was fetched before the last step ended, so the forward pass that we
                # took for host time was compute. Do not make that mistake again in this loop.
                self._host_between = False
                self._regular = 0
                machine.base(COMPUTE)
            elif self._fed and not self._host_between:
                self._regular += 1
                self._host_between = self._regular > _REGULAR_CYCLES
            self._unused_batch = False
            self.writer.words[_BACKWARDS_AT] += 1
        except Exception as error:  # the fence around the training
            self.fault("backward", error)

    def backward_ends(self) -> None:
        try:
            if self.grad_bytes:
                self.count_collective("all_reduce", sum(self.grad_bytes.values()))
                self.grad_bytes.clear()
            if self.steps.backward_ends():
                self.boundary()
        except Exception as error:  # the fence around the training
            self.fault("backward", error)

    def optimizer_stepped(self, optimizer: int) -> None:
        try:
            if self.steps.optimizer_stepped(optimizer) and not (self._off and "step" in self._off):
                self.boundary()
        except Exception as error:  # the fence around the training
            self.fault("step", error)

    def _take_note(self) -> None:
        """Of a step inside a compiled graph, late: what ran in between counts as a part of it."""
        self.compiled_steps.clear()
        self.optimizer_stepped(COMPILED)

    def boundary(self, number: int | None = None) -> None:
        """A step ends here; ``number`` is its own number, from 1, where the user says it."""
        machine = self.machine
        if not machine.stepping:
            # The first call of whyidle.step() in a loop without loader and backward pass: what it ends began unseen.
            self._begin()
            return
        writer = self.writer
        if writer is None:
            return
        if number is not None:
            words = writer.words
            words[WORD_AT["base_step"][0]] = max(0, number - 1 - words[WORD_AT["steps"][0]])
        if self.exchange is not None:
            self.exchange.note(self.mixed)
        self.mixed = False
        if not machine.boundary(HOST if self._fed and self._host_between else COMPUTE):
            if self.exchange is not None:
                self.exchange.take_back()
            return
        self._fed = self._unused_batch = False
        if self.exchange is not None:
            self.exchange.poll()
        self._look_in -= 1
        if self._look_in <= 0:
            self._look()

    def _look(self) -> None:
        """Whether a process group or a GPU has come: at each of the first steps, then now and then."""
        self._looked += 1
        self._look_in = _LOOK_EVERY if self._looked > _LOOK_EVERY else 1
        machine = self.machine
        if not self._grouped:
            self._find_group()
        if machine.device is None:
            self._find_device()
        elif machine.device.dead and self.works("device_clock"):
            self.state("device_clock", "failed")

    # -- collectives and checkpoints

    def collective_begins(self) -> int:
        try:
            if self.asleep:
                self.wake()
            if self._off and "work_wait" in self._off:
                return NOT_ENTERED
            return self.machine.enter(COLLECTIVE)
        except Exception as error:  # the fence around the training
            return self.fault("work_wait", error)

    def count_collective(self, op: str, size: int) -> None:
        if self.writer is not None:
            index = COLLECTIVE_OP[op]
            self.writer.words[_CALLS_AT + index] += 1
            self.writer.words[_BYTES_AT + index] += size

    def own_task(self) -> OwnTask:
        return OwnTask(self.task)

    def save_begins_behind(self) -> None:
        """An asynchronous save begins: what it will have saved is the state of now, not of when it is through."""
        if self.writer is not None:
            self._saving_step = self._step_number()

    def checkpoint_done(self, kind: str, size: int, behind: bool = False) -> None:
        """A save or load has finished; ``size`` in bytes, 0 where unknown. ``behind``: in a thread of its own."""
        if self.writer is None:
            # A script that is not recorded before its first batch has often restored by then.
            self._restored_early = self._restored_early or (self.asleep and kind == "load")
            return
        words = self.writer.words
        index = _CHECKPOINT_KIND[kind]
        words[_CHECKPOINTS_AT + index] += 1
        words[_CHECKPOINT_BYTES_AT + index] += size
        if kind == "save":
            words[WORD_AT["checkpoint_step"][0]] = self._saving_step if behind else self._step_number()
        else:
            self._go_on()

    def _step_number(self) -> int:
        words = self.writer.words  # type: ignore[union-attr]
        return words[WORD_AT["base_step"][0]] + words[WORD_AT["steps"][0]]

    def _go_on(self) -> None:
        """Restored before the first step: this attempt goes on from the last step that was saved."""
        words = self.writer.words  # type: ignore[union-attr]
        if words[WORD_AT["steps"][0]] or self._restored:
            return
        self._restored = True
        if self._restore_step >= 0:
            words[WORD_AT["base_step"][0]] = self._restore_step
        else:
            # Restored from a save that no ledger here knows of (rank 0 of another node's): which steps are repeated
            # cannot be told, so none is said to be.
            words[WORD_AT["recompute_until"][0]] = 0

    # -- the others

    def _find_group(self) -> None:
        """Learns of the process group as soon as there is one, and offers the exchange to its ranks."""
        distributed = sys.modules.get("torch.distributed")
        try:
            if distributed is None or not distributed.is_available() or not distributed.is_initialized():
                return
            self._grouped = True
            writer, machine = self.writer, self.machine
            if writer is None or not isinstance(machine, PhaseMachine):
                return
            self.world_size = distributed.get_world_size()
            rank = distributed.get_rank()
            writer.set("rank", rank)
            writer.set("world_size", self.world_size)
            if self.world_size > 1:
                self.exchange = Exchange(self, machine, rank, self.world_size)
                self.exchange.start()
        except Exception as error:  # the fence around the training
            self.fault("exchange", error)

    def _find_device(self) -> None:
        """Drives the machine by the GPU's clock from the first boundary on at which there is a GPU in use."""
        try:
            cuda = sys.modules.get("torch.cuda")
            if cuda is None or not cuda.is_initialized() or not isinstance(self.machine, PhaseMachine):
                return
            if not self.works("device_clock") or self.writer is None:
                return
            from .cuda_events import CudaEvents

            index = cuda.current_device()
            self.machine.drive(CudaEvents())
            self.writer.set("device_index", index)
            self.writer.set_string("device", f"cuda:{index}")
            uuid = str(getattr(cuda.get_device_properties(index), "uuid", ""))
            self.writer.set_string("uuid", nvml_uuid(uuid))
            self.state("device_clock", "active")
        except Exception as error:  # the fence around the training
            self.fault("device_clock", error)


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _close_with_child(close: Callable[[], None]) -> None:
    """A process that multiprocessing has forked ends without exit handlers; it runs finalizers of its own."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    import multiprocessing
    from multiprocessing import util

    method = getattr(process.current_process(), "_start_method", None) or multiprocessing.get_start_method()
    if method != "spawn":
        util.Finalize(None, close, exitpriority=-100)


def _in_data_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
