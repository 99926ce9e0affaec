"""The life of a recording: when it begins, what it consists of, and how it ends.

A session is armed first (hooks are in place, nothing is recorded) and wakes at the first sign of training: a batch is
asked for, a backward pass or a collective begins. Launchers and data-loading workers, which show no such sign, thus
never get a ledger.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from ..ledger.causes import COLLECTIVE_OP, HOOK_STATES, HOOKS
from ..ledger.directory import ledger_dir, reap
from ..ledger.layout import WORD_AT
from ..ledger.writer import LedgerWriter
from .exchange.exchange import Exchange
from .flusher import Flusher
from .groups import ALONE
from .identity import identify, nvml_uuid
from .loop import Loop
from .machine import NOT_ENTERED, PhaseMachine
from .meters.blocked import BlockedMeter
from .meters.collective import WaitMeter
from .notices import debug, say
from .null_machine import NullMachine
from .restart import restart_of
from .saves import Saves
from .tasks import OwnTask, TaskClock
from .threads import OwnThreads
from .wait_codes import UNKNOWN_WAIT, Issues, WaitCode, slot_of, wait_code
from .watcher import Watcher

_STATE_AT = WORD_AT["hook_states"][0]
_HOOK = {name: index for index, name in enumerate(HOOKS)}
_STATE = {name: index for index, name in enumerate(HOOK_STATES)}
_CALLS_AT, _BYTES_AT = WORD_AT["collective_calls"][0], WORD_AT["collective_bytes"][0]
_SLOT_BYTES_AT = WORD_AT["slot_op_bytes"][0]
_FAULTS_AT = WORD_AT["faults"][0]
_REAP_AFTER_SECONDS = 24 * 3600.0
_FAULTS_TOLERATED = 10
"""A hook whose own code failed this often is switched off."""

_LOOK_EVERY = 32
"""Steps between two looks for a process group or an accelerator that came late. The first steps look each time."""


class Session:
    """What the hooks talk to. No public method raises."""

    def __init__(self) -> None:
        self.machine: PhaseMachine | NullMachine = NullMachine()
        self.writer: LedgerWriter | None = None
        self.exchange: Exchange | None = None
        self.task: TaskClock | None = None
        self.device: Any = None
        """The accelerator (torch.device) whose clock drives the machine; None on a CPU rank."""
        self._watcher: Watcher | None = None
        self._flusher: Flusher | None = None
        self._of_parent: PhaseMachine | NullMachine | None = None
        self.asleep = False
        """Armed, and waiting for the first sign of training."""
        self.states: dict[str, str] = dict.fromkeys(HOOKS, "absent")
        self.off: set[str] = set()
        """Hooks that have failed too often."""
        self._faults: dict[str, int] = {}
        self.loop = Loop(self)
        self.saves = Saves(self)
        self._forget()

    def _forget(self) -> None:
        self.world_size = 1
        self._world: weakref.ref[Any] | None = None
        self._looked = self._look_in = 0
        self.loop.forget()
        self.saves.forget()

    # -- life

    def wake(self) -> bool:
        """Creates the ledger and starts the accounting; -> whether this process is being recorded."""
        if not self.asleep:
            return self.writer is not None
        self.asleep = False
        if ("torch" in sys.modules and _in_data_worker()) or _in_checkpoint_process():
            return False
        directory = ledger_dir()
        try:
            who = identify()
            before = restart_of(directory, who)
            strings = {"run": who.run, "owner": who.owner, "node": who.node, "device": "cpu", "uuid": ""}
            numbers = {
                "rank": who.rank,
                "world_size": who.world_size,
                "local_rank": who.local_rank,
                "device_index": -1,
                "attempt": before.attempt,
                "pid": who.pid,
                "pid_start_ticks": who.pid_start_ticks,
                "start_ns": who.start_ns,
                "checkpoint_step": -1,
                "loader_workers": -1,
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
        self.saves.resume(before.checkpoint_step)
        self.world_size = who.world_size
        self.machine = PhaseMachine(self.writer.words, who.start_ns, self.writer.file.flush)
        self._flusher = Flusher(self.writer.file)
        self.task = TaskClock(os.getpid(), threading.get_native_id())
        threads = OwnThreads()
        self.machine.waits = WaitMeter(self.task, threads)
        self.machine.blocked = BlockedMeter(self.task, threads)
        for hook, state in self.states.items():
            self.writer.words[_STATE_AT + _HOOK[hook]] = _STATE[state]
        self.find_group()
        _close_with_child(self.close)
        return True

    def close(self) -> None:
        """Accounts for everything and ends the ledger."""
        self.asleep = False
        try:
            if self.loop.compiled_steps:
                self.loop.take_note()
        except Exception as error:  # the fence around the training
            self.fault("step", error)
        machine, self.machine = self.machine, NullMachine()
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        if self._flusher is not None:
            self._flusher.stop()
            self._flusher = None
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
        self.writer = self.task = self.device = None
        self._forget()

    def before_fork(self) -> None:
        if self._flusher is not None:
            self._flusher.stop()

    def after_fork(self) -> None:
        if self._flusher is not None:
            self._flusher.start()

    def after_fork_in_child(self, armed: bool) -> None:
        """In a forked child: the ledger is the parent's. The child may wake on its own if it was armed for that."""
        # The parent's events are kept, and nothing is done with them: to destroy one asks a device that a forked child
        # must not touch.
        self._of_parent = self.machine
        self.machine = NullMachine()
        self.writer = self.exchange = self.task = self.device = self._watcher = self._flusher = None
        self._forget()
        self.asleep = armed

    def begin(self) -> None:
        """The first step begins."""
        self._find_device()
        self.machine.begin()

    def after_step(self) -> None:
        """A step has ended."""
        if self.exchange is not None:
            self.exchange.poll()
        self._look_in -= 1
        if self._look_in <= 0:
            self._look()

    def _look(self) -> None:
        """Whether a process group or an accelerator has come: at each of the first steps, then now and then."""
        self._looked += 1
        self._look_in = _LOOK_EVERY if self._looked > _LOOK_EVERY else 1
        machine = self.machine
        self.find_group()
        if machine.device is None:
            self._find_device()
        elif machine.device.dead and self.works("device_clock"):
            self.state("device_clock", "failed")

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
            self.off.add(hook)
            say(
                f"the hook '{hook}' failed {count} times and is switched off ({_why(error)}). The training is not "
                "affected."
            )
        return NOT_ENTERED

    def works(self, hook: str) -> bool:
        return self.states[hook] != "failed"

    # -- collectives

    def code_of(self, group: Any, pairwise: bool = False, peer: int = -1) -> WaitCode:
        """What a wait in a process group is; NOT_ENTERED in one of this rank alone. ``peer``: a rank of the group."""
        exchange = self.exchange
        if exchange is None:
            if self.writer is None:
                return UNKNOWN_WAIT
            exchange = self.find_group()
            if exchange is None:
                return UNKNOWN_WAIT
        groups = exchange.groups
        slot = groups.known(group, pairwise)
        if slot is None:
            if not self.machine.admits():
                return UNKNOWN_WAIT  # a thread of the program, or a signal handler: nothing could be held back from it
            exchange = self.find_group() or exchange  # whoever makes a new world makes new groups
            groups = exchange.groups
            slot = groups.slot_of(group, pairwise)
        if slot == ALONE:
            return NOT_ENTERED
        return wait_code(slot, groups.peer_of(group, peer) if peer >= 0 else -1)

    def wait_for(self, handle: Any) -> int:
        """The wait for a work or a future begins -> what to leave."""
        try:
            if self.asleep:
                self.wake()
            exchange = self.exchange
            issue = exchange.groups.waits_for(handle) if exchange is not None else None
            if issue is None:
                return self.wait_begins(UNKNOWN_WAIT)
            return self.wait_begins(*issue)
        except Exception as error:  # the fence around the training
            return self.fault("work_wait", error)

    def wait_begins(self, code: WaitCode, issues: Issues = ()) -> int:
        """-> what to leave. ``issues``: the sends and receives that are waited for."""
        if code == NOT_ENTERED or (self.off and "work_wait" in self.off):
            return NOT_ENTERED
        machine = self.machine
        # What makes another stream wait is no wait of the rank's, until its home stream waits for that one.
        if machine.device is not None and not machine.at_home():
            return NOT_ENTERED
        return machine.enter_wait(code, issues)

    def wait_in(self, group: Any) -> int:
        """A wait in all members of a process group begins, without a work -> what to leave."""
        try:
            if self.asleep:
                self.wake()
            return self.wait_begins(self.code_of(group))
        except Exception as error:  # the fence around the training
            return self.fault("process_group", error)

    def wait_until(self, group: Any, event: Any) -> None:
        """The home stream is about to wait, in all members of a process group, for an event that has timing."""
        try:
            machine = self.machine
            if machine.device is None or "work_wait" in self.off or not machine.at_home():
                return
            code = self.code_of(group)
            if code != NOT_ENTERED:
                machine.wait_until(code, event)
        except Exception as error:  # the fence around the training
            self.fault("process_group", error)

    def count_collective(self, op: str, size: int, code: WaitCode) -> None:
        """``size`` in bytes. ``code`` is what a wait for it would be; NOT_ENTERED in a group of this rank alone."""
        if self.writer is not None:
            words, index = self.writer.words, COLLECTIVE_OP[op]
            words[_CALLS_AT + index] += 1
            if size:
                words[_BYTES_AT + index] += size
                if code != NOT_ENTERED:
                    words[_SLOT_BYTES_AT + slot_of(code) * len(COLLECTIVE_OP) + index] += size

    def own_task(self) -> OwnTask:
        return OwnTask(self.task)

    # -- the others

    def find_group(self) -> Exchange | None:
        """Learns of the process group as soon as there is one, and of the next one after it -> its exchange."""
        distributed = sys.modules.get("torch.distributed")
        try:
            if distributed is None or not distributed.is_available() or not distributed.is_initialized():
                return self.exchange
            world = distributed.group.WORLD
            if self._world is not None and self._world() is world:
                return self.exchange
            writer, machine = self.writer, self.machine
            if writer is None or not isinstance(machine, PhaseMachine) or not machine.mine():
                return self.exchange
            self._world = weakref.ref(world)
            self.world_size = distributed.get_world_size()
            rank = distributed.get_rank()
            writer.set("rank", rank)
            writer.set("world_size", self.world_size)
            taken = None
            if self.exchange is not None:
                taken = self.exchange.abandon()
                self.exchange = None
            if self.world_size > 1:
                ranks = tuple(sorted(distributed.get_process_group_ranks(world)))
                self.exchange = Exchange(machine, rank, ranks, _raise_failure, self._exchange_state, taken)
        except Exception as error:  # the fence around the training
            self.fault("exchange", error)
        return self.exchange

    def _exchange_state(self, state: str) -> None:
        self.state("exchange", state)

    def computes_on(self, device: Any) -> None:
        """A loss is on ``device``: if that is an accelerator, its clock says from now on how long a phase was."""
        driven = self.device
        if device.type != "cpu" and (driven is None or (driven.type, driven.index) != (device.type, device.index)):
            self._find_device(device)

    def _find_device(self, seen: Any = None) -> None:
        """Drives the machine by the clock of the accelerator that the training uses, once there is one."""
        machine, writer = self.machine, self.writer
        try:
            if "torch" not in sys.modules or not isinstance(machine, PhaseMachine) or not machine.mine():
                return
            if writer is None or not self.works("device_clock"):
                return
            from .accelerators import device_in_use, events_of, uuid_of

            device = device_in_use(seen)
            if device is None or device == self.device:
                return
            events = events_of(device)
            machine.drive(events)
            if self._watcher is not None:
                self._watcher.stop()
            self._watcher = Watcher(machine, events.questions)
            self.device = device
            writer.set("device_index", device.index)
            writer.set_string("device", str(device))
            writer.set_string("uuid", nvml_uuid(uuid_of(device)))
            self.state("device_clock", "active")
        except Exception as error:  # the fence around the training
            self.fault("device_clock", error)


def _raise_failure(work: Any) -> None:
    """Raises what a finished operation has failed with. (``is_success`` says so too, but warns the user each time.)"""
    wait = type(work).wait
    getattr(wait, "__wrapped__", wait)(work)


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


def _in_checkpoint_process() -> bool:
    """Whether this is the process that DCP starts to save from: it has the environment of its rank, and is none."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return False
    target = getattr(process.current_process(), "_target", None)
    return getattr(target, "__module__", "") == "torch.distributed.checkpoint._async_process_executor"


def _in_data_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
