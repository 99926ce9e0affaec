"""The session: when the recording of a rank begins, what it consists of, and how it ends.

A session is armed first: the hooks are installed, but nothing is recorded. It wakes at the first sign of training: the
loop asks for a batch, a backward pass or a collective begins, or the ranks of a launcher begin to meet. In other
threads than the main one, and in processes that a rank has started, only a backward pass is such a sign. If such a
thread is the first to train, the recording begins again in it. Launchers and data-loading workers show no sign, so they
never create a ledger.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..ledger.causes import COLLECTIVE_OPS, HOOK_STATES, HOOKS, PHASE
from ..ledger.directory import is_tended, ledger_dir, reap
from ..ledger.layout import WORD_AT
from ..ledger.programs import joined
from ..ledger.writer import LedgerWriter
from . import background, census, frames, notebook, program
from .beside import probe as beside
from .ending import failed as failed_now
from .ending import last_error
from .failure import described, exited
from .flusher import flush_probe
from .given import cpus, memory, told
from .given.cpus import CpuProbe
from .given.memory import MemoryProbe
from .gpus.in_use import InUse
from .gpus.unused import UnusedGpus
from .gpus.utilisation import PERIOD_SECONDS, Utilisation
from .handlers import of_a_handler, pass_on
from .identity import RAY, Meeting, identify, meeting_of, nvml_uuid
from .loaders import Loaders
from .loop import Loop
from .machine import AROUND, BASES, CHECKPOINT, HOST, NOT_ENTERED, RESTORE, SHUTDOWN, PhaseMachine
from .meters.blocked import BlockedMeter
from .meters.collective import WaitMeter
from .meters.source import SourceMeter
from .meters.totals import Totals
from .naming import Naming
from .notices import debug, say
from .null_machine import NullMachine
from .restart import alive_beside, name_of, own_ledgers, restart_of, started_by_rank
from .returns import command_hash
from .saves import Saves
from .storage import looks as storage
from .stuck import DeviceProbes
from .tasks import OwnTask, TaskClock
from .threads import OwnThreads
from .wait_codes import FIRST_WAIT, UNKNOWN_WAIT, Issues, WaitCode, slot_of, wait_code
from .watcher import BESIDE, DEVICE, Probe, Watcher, scaled

if TYPE_CHECKING:  # imported by who needs it: most processes have one rank, and share nothing
    from .exchange.exchange import Exchange
    from .links.looks import LinkLooks
    from .shares.share import Shares

_STATE_AT = WORD_AT["hook_states"][0]
_HOOK = {name: index for index, name in enumerate(HOOKS)}
_STATE = {name: index for index, name in enumerate(HOOK_STATES)}
_OPS = len(COLLECTIVE_OPS)
_CALLS_AT, _BYTES_AT = WORD_AT["collective_calls"][0], WORD_AT["collective_bytes"][0]
_ASIDE_CALLS_AT, _ASIDE_BYTES_AT = WORD_AT["aside_calls"][0], WORD_AT["aside_bytes"][0]
_ASIDE = frozenset(PHASE[phase] for phase in ("eval", "rollout", "logging"))
_SLOT_BYTES_AT = WORD_AT["slot_op_bytes"][0]
_FAULTS_AT = WORD_AT["faults"][0]
_WORKERS_AT, _MARKED_AT = WORD_AT["loader_workers"][0], WORD_AT["marked_data"][0]
_RETURNED_AT = WORD_AT["returned_ns"][0]
_STOPPED_AT = WORD_AT["stopped_by"][0]
_HEARTBEAT_AT, _EXITED_AT, _ALIVE_AT = (WORD_AT[name][0] for name in ("heartbeat_ns", "exited", "alive_at_end"))
_REAP_AFTER_SECONDS = 24 * 3600.0
_WRITES_SECONDS = 0.2
"""For how long a program that ends itself waits for its ledger to be written."""
_FAULTS_TOLERATED = 10
"""A hook is switched off after its own code has failed this often."""

_NO_WAITS = (NOT_ENTERED, FIRST_WAIT)
_LOSSES_ELSEWHERE = 8
"""The clock changes to another device after this many losses there in a row."""
_LOOK_EVERY = 32
"""Steps between two checks for a new process group or accelerator. The first steps all check."""


class Session:
    """The object that the hooks call. No public method raises, except for what a signal handler of the program has
    raised meanwhile (handlers.py)."""

    def __init__(self) -> None:
        self.machine: PhaseMachine | NullMachine = NullMachine()
        self.writer: LedgerWriter | None = None
        self.exchange: Exchange | None = None
        self.shares: Shares | None = None
        """Set by the first call of `whyidle.share`."""
        self.task: TaskClock | None = None
        self.threads = OwnThreads()
        self.data_phase: SourceMeter | None = None
        """The meter of the phases that the user marks as waits for data."""
        self.device: Any = None
        """The accelerator (torch.device) whose clock drives the machine; None on a CPU rank."""
        self._losses_elsewhere = 0  # in a row, on another device than the one whose clock drives the machine
        self.on_device = False
        """Whether a loss was seen on an accelerator."""
        self._watcher: Watcher | None = None
        self._device_watcher: Watcher | None = None
        self._frames: frames.Frames | None = None
        self._storage: storage.StorageLooks | None = None
        self._device_probes: DeviceProbes | None = None
        self._links: LinkLooks | None = None
        self._beside: beside.BackgroundLooks | None = None
        self._totals: Totals | None = None
        self._of_parent: PhaseMachine | NullMachine | None = None
        self._end_notebook: Callable[[], None] = lambda: None
        self._cpus = frozenset(os.sched_getaffinity(0))  # before the training's own imports may narrow them
        self._in_use: InUse | None = None
        self.asleep = False
        """Whether it is armed and waits for the first sign of training."""
        self.states: dict[str, str] = dict.fromkeys(HOOKS, "absent")
        self.off: set[str] = set()
        """Hooks that are switched off because they have failed too often."""
        self._helper: bool | None = None  # whether a rank has started this process; None: not known yet
        self._failure = ""  # the exception, if that is so
        self._memory: MemoryProbe | None = None
        self._failed = False  # whether an exception ends this process, a child of multiprocessing
        self._was_recorded = False  # whether this process has had a ledger
        self._meeting: Meeting | None = None  # as which rank it has begun to meet the others
        self._faults: dict[str, int] = {}
        self.loop = Loop(self)
        self.saves = Saves(self)
        self._forget()

    def _forget(self) -> None:
        self.world_size = 1
        self._naming: Naming | None = None
        self._world: weakref.ref[Any] | None = None
        self.made: dict[int, weakref.ref[Any]] = {}
        """The process groups that a loop which goes on making some has not used yet, by id."""
        self._looked = self._look_in = 0
        self.on_device = False
        self.loaders = Loaders(self._tell_workers, lambda: self.writer.words if self.writer is not None else None)
        self.loop.forget()
        self.saves.forget()

    # -- life

    def wake(self, *, attached: bool = False, trains: bool = False, meeting: Meeting | None = None) -> bool:
        """Creates the ledger and starts the accounting. Returns whether this process is being recorded.

        The calling thread becomes the training thread. ``attached``: it has called attach(). ``trains``: it is known
        that it trains. Without both, only the main thread is accepted: another one may fetch batches or gather metrics
        for it. Without ``trains``, a process that a rank has started stays asleep: it may evaluate or load for it.
        ``meeting``: it begins to meet the others.
        """
        if not self.asleep:
            return self.writer is not None
        if not (attached or trains) and threading.current_thread() is not threading.main_thread():
            return False
        directory = ledger_dir()
        if not trains and self._helps_a_rank(directory):
            return False
        self.asleep = False
        if ("torch" in sys.modules and _in_data_worker()) or _in_checkpoint_process():
            return False
        try:
            self._meeting = meeting
            who = identify(meeting=meeting)
            others = own_ledgers(directory)
            who.run = name_of(others, who)
            # If this process was recorded before, that ledger has the time since its start.
            start_ns = time.monotonic_ns() if self._was_recorded else who.start_ns
            before = restart_of(others, who)
            strings = {"run": who.run, "owner": who.owner, "node": who.node, "device": "cpu", "uuid": ""}
            strings["launcher"] = told.launcher(os.environ)
            numbers = {
                "rank": who.rank,
                "world_size": who.world_size,
                "local_rank": who.local_rank,
                "local_world_size": who.local_world_size,
                "device_index": -1,
                "attempt": before.attempt,
                "pid": who.pid,
                "pid_start_ticks": who.pid_start_ticks,
                "start_ns": start_ns,
                "checkpoint_step": -1,
                "loader_workers": -1,
                "recompute_until": 0 if before.finished else before.steps,
                "command_hash": command_hash(),
                "requeues": who.requeues,
                "launcher_cpus": told.launcher_cpus(os.environ),
            }
            # Before the own ledger exists: reading that one would drop its lock.
            if not is_tended(directory):
                reap(directory, _REAP_AFTER_SECONDS)
            self.writer = LedgerWriter(directory, strings, numbers)
        except Exception as error:  # the fence around the training
            say(f"this rank is not recorded: no ledger in {directory} ({_why(error)}). Set WHYIDLE_DIR to a tmpfs.")
            if debug():
                traceback.print_exc()
            return False
        self._was_recorded = True
        self.saves.resume(before)
        self.world_size = who.world_size
        self._naming = Naming(self.writer, who, self.saves.resume)
        self.machine = PhaseMachine(self.writer.words, start_ns, self.writer.file.flush)
        self.machine.was_in(RESTORE, self.saves.early_ns)
        self.task = TaskClock(os.getpid(), threading.get_native_id())
        self.threads = OwnThreads()
        self.data_phase = SourceMeter(self, receives=False)
        self.machine.waits = WaitMeter(self.task, self.threads)
        self.machine.blocked = BlockedMeter(self.task, self.threads)
        self.machine.books.asides.task = self.task
        for hook, state in self.states.items():
            self.writer.words[_STATE_AT + _HOOK[hook]] = _STATE[state]
        probes, suspensions = self._probes(self.writer, self.machine), self.machine.suspensions
        self._watcher = Watcher(
            probes,
            "whyidle-watcher",
            self._probe_off,
            suspensions=suspensions,
            early=lambda: not (self.machine.stepping or self.machine.steps),
        )
        self._end_notebook = notebook.watch(self)
        self.find_group()
        _end_with_child(self._child_ends)
        return True

    def moves(self) -> bool:
        """The calling thread trains, and the one that is recorded has only met other ranks, or read data: it is the one
        of a server, or of a window. So a new ledger begins, in which all of that is `startup`. Returns whether it
        has."""
        writer, machine = self.writer, self.machine
        if writer is None or machine.steps or machine.phase not in BASES:
            return False
        with suppress(OSError):
            os.unlink(writer.path)
        # To end these properly takes time, and none has found anything yet.
        if self.exchange is not None:
            self.exchange.abandon()
        if self._naming is not None:
            self._naming.stop()
        if self.shares is not None:
            self.shares.close()
        self.exchange = self._naming = self.shares = None
        self.close()
        self._was_recorded, self.asleep = False, True
        return self.wake(trains=True, meeting=self._meeting)

    def _probes(self, writer: LedgerWriter, machine: PhaseMachine) -> list[Probe]:
        probes: list[Probe] = []
        if frames.enabled():
            self._frames = frames.Frames(machine, threading.get_native_id(), self.threads)
            probes.append(Probe("frames", self._frames.look, expect=self._frames.expect))
            self.state("frames", "active")
        else:
            self.state("frames", "absent")
        if storage.enabled():
            looks = self._storage = storage.StorageLooks(
                machine, self.loaders, threading.get_native_id(), self._frames, self._port_of_ranks
            )
            probes.append(Probe("storage", looks.look, expect=looks.expect))
        probes.append(Probe("links", self._look_at_links, soon=lambda: self._links.soon() if self._links else 0.0))
        if beside.enabled():
            self._beside = beside.BackgroundLooks(
                machine, self.saves.behind, lambda: self.loaders.pids, os.path.dirname(writer.path), self._moved
            )
            look, soon = self._beside.look, self._beside.soon
            probes.append(Probe("background", look, beside.PERIOD_SECONDS, soon=soon, waits_its_turn=True))
        probes.append(Probe("gpus", UnusedGpus(self, machine).look))
        probes.append(Probe("census", lambda: census.count(writer.words), census.PERIOD_SECONDS))
        tid, directory = threading.get_native_id(), os.path.dirname(writer.path)
        cpu = CpuProbe(writer.words, machine.write_string, tid, self._cpus, self.loaders.pids, directory)
        probes.append(Probe("cpus", cpu.look, cpus.PERIOD_SECONDS))
        self._memory = MemoryProbe(writer.words)
        probes.append(Probe("memory", self._memory.look, memory.PERIOD_SECONDS))
        # The last one: it lets other threads run, and the others look at what the training does at this moment.
        return [*probes, flush_probe(writer)]

    def _look_at_links(self) -> None:
        if self._links is not None:
            self._links.look()

    def _moved(self) -> dict[str, int]:
        return self._links.moved() if self._links is not None else {}

    def _probe_off(self, name: str, error: Exception) -> None:
        """A probe has failed, or costs too much. Called in the watcher's thread."""
        if self.writer is not None:
            self.writer.words[_FAULTS_AT] += 1
        if name in HOOKS:
            self.state(name, "failed")
            say(f"'{name}' is switched off ({_why(error)}). The training is not affected.")

    def stopped(self, number: int) -> Callable[[], None] | None:
        """A signal has asked the process to end. Called in a handler of the training's own.

        It may interrupt any phase, which then pauses until what this returns is called, as for a garbage collection:
        the handler may save. Not in a save: only one is measured at a time.
        """
        if self.writer is not None:
            self.writer.words[_STOPPED_AT] = number
            self.writer.file.flush_within(_WRITES_SECONDS)  # the handler may end the process at once
        machine = self.machine
        if not machine.stepping or machine.saving is not None or machine.phase in (CHECKPOINT, *AROUND):
            return None
        old = machine.enter(HOST)
        return lambda: machine.leave(old)

    def exits(self, status: int) -> None:
        """``os._exit`` is about to end the process, perhaps in another thread than the training thread."""
        writer, machine = self.writer, self.machine
        if writer is None or not isinstance(machine, PhaseMachine) or writer.words[_STOPPED_AT]:
            return
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt):
            status = 0  # somebody has ended it, and it has not failed
        if status:
            machine.write_string("failure", exited(status, error, frames.enabled()))
        writer.words[_HEARTBEAT_AT] = time.monotonic_ns()
        writer.words[_EXITED_AT] = 1 + (status & 0xFF)
        writer.file.flush_within(_WRITES_SECONDS)

    def main_ends(self) -> None:
        """The main program has ended. The interpreter now waits for threads that are not daemons, before it exits."""
        machine = self.machine
        if self.writer is None or not (machine.stepping and machine.mine()) or machine.phase == SHUTDOWN:
            return
        try:
            self.loop.close()
            if self._failed or failed_now():
                self._write_failure(self.writer)
                self.writer.file.flush()  # the launcher may kill this process before it exits
        except Exception as error:  # the fence around the training
            self.fault("step", error)
        machine.enter_from_base(SHUTDOWN)

    def _write_failure(self, writer: LedgerWriter) -> None:
        """When the main program has ended, or else at the end. Only the first call counts which ranks are alive: a
        program may wait for its threads then."""
        writer.set_string("failure", self._failure or described(last_error(), frames.enabled()))
        if not writer.words[_ALIVE_AT]:
            writer.set("alive_at_end", 1 + alive_beside(writer.copy(), writer.path))

    def _child_ends(self, last: bool) -> None:
        """This child of multiprocessing ends. ``last``: its exit handlers do not run."""
        self._failed = failed_now()
        self._failure = described(last_error(), frames.enabled()) if self._failed else ""
        if last:
            self.close()

    def _helps_a_rank(self, directory: str) -> bool:
        """Whether a rank that is recorded has started this process. Never raises."""
        if self._helper is None:
            self._helper = started_by_rank(directory)
        return self._helper

    def close(self, failed: bool = False, interrupted: bool = False) -> None:
        """Accounts for everything and ends the ledger. ``failed``: an exception ends this process. ``interrupted``:
        Ctrl-C does."""
        self.asleep = False
        try:
            self.loop.close()
        except Exception as error:  # the fence around the training
            self.fault("step", error)
        self._end_notebook()
        machine, self.machine = self.machine, NullMachine()
        for watcher in (self._device_watcher, self._watcher):
            if watcher is not None:
                watcher.stop()
        self._device_watcher = self._watcher = self._frames = None
        try:
            if self._links is not None:
                self._links.close()
            if self.shares is not None:
                self.shares.close(wait=True)
            if self._beside is not None:
                self._beside.close()
            if self.exchange is not None:
                self.exchange.close()
                self.exchange = None
            if self._naming is not None:
                self._naming.close()
            if self._totals is not None:
                machine.update(self._totals.write)
            machine.close()
            for probe in (self._storage, self._device_probes):
                if probe is not None:
                    with suppress(Exception):  # a look that is slow to stop may change what it reads
                        probe.close()
            if self.writer is not None:
                failed = failed or self._failed
                if failed:
                    self._write_failure(self.writer)
                    if self._memory is not None:
                        self._memory.count_kills()
                self.writer.set("heartbeat_ns", time.monotonic_ns())  # it tells when this rank ended
                self.writer.close(failed, interrupted)
            if self.task is not None:
                self.task.close()
        except Exception as error:  # the fence around the training
            self.fault("step", error)
        self.writer = self.task = self.data_phase = self.device = self._links = self._beside = self._totals = None
        self._in_use = self._memory = self._storage = self._device_probes = None
        self._forget()
        background.release_ended()

    def before_fork(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()

    def after_fork(self) -> None:
        if self._watcher is not None:
            self._watcher.start()

    def after_fork_in_child(self, armed: bool) -> None:
        """Ends the recording in a forked child: the ledger belongs to the parent. If ``armed``, the child may wake."""
        # Keeps the parent's events but does not use them. Destroying one would call the device, which a forked child
        # must not touch.
        self._of_parent = self.machine
        background.after_fork_in_child()
        self.machine = NullMachine()
        self.writer = self.exchange = self.task = self.data_phase = self.shares = None
        self.device = self._watcher = self._device_watcher = self._links = self._beside = self._totals = None
        self._in_use = self._memory = self._storage = self._device_probes = None
        self._forget()
        self._helper, self._was_recorded, self._failed, self._failure = None, False, False, ""
        self._cpus = frozenset(os.sched_getaffinity(0))
        self.asleep = armed

    def begin(self) -> None:
        """The first step begins."""
        self._find_device()
        self._name(begins=True)
        if self._totals is None and self.task is not None and self.writer is not None and self.machine.admits():
            self._totals = Totals(self.task, self.writer.words)
        self.machine.begin()

    def _name(self, *, begins: bool = False) -> None:
        """Gives the run the name that is known by now. ``begins``: the first step begins."""
        if (naming := self._naming) is None:
            return
        self.find_group()
        try:
            if begins:
                naming.begins(self.machine)
            naming.settle(self.machine)
        except Exception as error:  # the fence around the training
            self.fault("step", error)

    def after_step(self) -> None:
        """A step has ended."""
        if (exchange := self.exchange) is not None:
            exchange.idle_steps -= 1
            if exchange.idle_steps <= 0:
                exchange.poll()
        if self._totals is not None and self.machine.since >= self._totals.due_ns:
            self.machine.update(self._totals.write)
        self._look_in -= 1
        if self._look_in <= 0:
            self._look()

    def _look(self) -> None:
        """Checks for a new process group or accelerator: at each of the first steps, then every _LOOK_EVERY steps."""
        self._looked += 1
        self._look_in = _LOOK_EVERY if self._looked > _LOOK_EVERY else 1
        machine = self.machine
        if self._looked == 1:
            self._describe()
        self._name()
        if machine.device is None:
            self._find_device()
        elif machine.device.dead and self.works("device_clock"):
            self.state("device_clock", "failed")
        elif self._in_use is not None:
            self._in_use.look()

    def _describe(self) -> None:
        """Writes what runs the loop, and how its program names its options."""
        writer, machine = self.writer, self.machine
        if writer is None or not machine.admits():
            return
        try:
            machine.update(writer.set_string, "framework", program.framework(sys._getframe()))
            machine.update(writer.set_string, "options", joined(program.options()))
            for word, number in told.threads(os.environ).items():
                writer.set(word, number)
        except Exception as error:  # the fence around the training
            self.fault("step", error)

    # -- hooks

    def _tell_workers(self, workers: int) -> None:
        if self.writer is not None:
            self.writer.words[_WORKERS_AT] = workers

    def state(self, hook: str, state: str) -> None:
        self.states[hook] = state
        if self.writer is not None:
            self.writer.words[_STATE_AT + _HOOK[hook]] = _STATE[state]

    def absorbs(self, hook: str, error: BaseException) -> bool:
        """Counts a failure of a hook's own code, as `fault` does. False: it is an interrupt, or a signal handler of the
        program has raised it. The hook has to end what it has begun, and to raise it again."""
        if not isinstance(error, Exception) or of_a_handler(error):
            return False
        self.fault(hook, error)
        return True

    def fault(self, hook: str, error: BaseException) -> int:
        """Counts a failure of a hook's own code, and switches the hook off after some. Returns NOT_ENTERED.

        Raises what a signal handler of the program has raised meanwhile: it is the program's.
        """
        pass_on(error)
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
        """The code of a wait in a process group; NOT_ENTERED if this rank is its only member.

        ``peer``: the rank, within the group, at the other end of a send or receive.
        """
        exchange = self.exchange
        if exchange is None:
            if self.writer is None:
                return UNKNOWN_WAIT
            exchange = self.find_group()
            if exchange is None:
                return UNKNOWN_WAIT
        seen = exchange.groups.seen.get((id(group), pairwise))
        if seen is not None and seen[0]() is group:
            code = seen[1]
        else:
            if not self.machine.admits():
                return UNKNOWN_WAIT  # another thread, or a signal handler: its waits cannot be kept for a split
            exchange = self.find_group() or exchange  # a new group may belong to a new world
            code = exchange.groups.code_of(group, pairwise)
            if self.made and self._is_first(group, code, pairwise):
                return FIRST_WAIT
        if peer < 0 or code == NOT_ENTERED:
            return code
        return wait_code(slot_of(code), exchange.groups.peer_of(group, peer))

    def _is_first(self, group: Any, code: WaitCode, pairwise: bool) -> bool:
        """Whether the loop has just made this group, and all members make their first call in it."""
        made = self.made.pop(id(group), None)
        return (
            made is not None
            and made() is group
            and self.machine.device is None
            and not pairwise
            and code != NOT_ENTERED
        )

    def meeting_begins(self, world: int, rank: int, init_method: str) -> int:
        """The ranks begin to meet. If it is known which one of several this process is, it is a sign of training: ranks
        whose others do not come have a ledger, too. Returns what to pass to ``leave_wait``.

        The arguments are those of `init_process_group`: see `meeting_of`. Ray's workers meet in another thread than the
        one that trains.
        """
        try:
            if "new_group" in self.off:
                return NOT_ENTERED
            if self.asleep and RAY not in os.environ:
                meeting = meeting_of(os.environ, world, rank, init_method)
                if meeting is not None:
                    self.wake(meeting=meeting)
            return self.wait_begins(UNKNOWN_WAIT)
        except Exception as error:  # the fence around the training
            return self.fault("new_group", error)

    def wait_for(self, handle: Any) -> int:
        """The wait for a work or a future begins. Returns what to pass to ``leave``."""
        try:
            exchange = self.exchange
            if exchange is None:
                if self.asleep:
                    self.wake()
                return self.wait_begins(UNKNOWN_WAIT)
            # Once: other ranks may not make a second wait for the same work.
            issued = exchange.groups.waited.pop(id(handle), None)
            if issued is None or issued[0]() is not handle:
                return self.wait_begins(UNKNOWN_WAIT)
            machine = self.machine
            if self.off or machine.device is not None:  # otherwise as `wait_begins`, without its call
                return self.wait_begins(issued[1], issued[2], beside=issued[3], blocks=issued[4])
            code = issued[1]
            if code in _NO_WAITS:
                return self.wait_begins(code)
            return machine.enter_wait(code, issued[2])
        except Exception as error:  # the fence around the training
            return self.fault("work_wait", error)

    def wait_begins(self, code: WaitCode, issues: Issues = (), *, beside: bool = False, blocks: bool = False) -> int:
        """A wait begins. ``issues``: the sends and receives that it waits for. ``beside``: it counts, too, if another
        stream than the home stream waits. ``blocks``: see `PhaseMachine.enter_wait`. Returns what to pass to
        ``leave_wait``."""
        if code == NOT_ENTERED or (self.off and "work_wait" in self.off):
            return NOT_ENTERED
        machine = self.machine
        if code == FIRST_WAIT:
            old = machine.enter_from_base(HOST)
            if old != NOT_ENTERED and machine.waits is not None:
                machine.waits.begin_first()
            return old
        # If another stream waits, the rank does not wait until its home stream or its host waits for that stream.
        if machine.device is not None and not machine.at_home():
            return machine.enter_side_wait(code) if beside and not issues else NOT_ENTERED
        return machine.enter_wait(code, issues, blocks)

    def wait_in(self, group: Any) -> int:
        """A wait without a work begins in all members of a process group. Returns what to pass to ``leave``."""
        try:
            if self.asleep:
                self.wake()
            return self.wait_begins(self.code_of(group))
        except Exception as error:  # the fence around the training
            return self.fault("process_group", error)

    def wait_until(self, group: Any, event: Any) -> None:
        """In all members of a process group, the home stream is about to wait for an event that has timing."""
        try:
            machine = self.machine
            if machine.device is None or "work_wait" in self.off or not machine.at_home():
                return
            code = self.code_of(group)
            if code != NOT_ENTERED:
                machine.wait_until(code, event)
        except Exception as error:  # the fence around the training
            self.fault("process_group", error)

    def count_collective(self, op: int, size: int, code: WaitCode) -> None:
        """Counts a collective of ``size`` bytes. ``op``: its index in COLLECTIVE_OPS; ``code``: that of its wait."""
        if (writer := self.writer) is not None:
            words = writer.words
            words[_CALLS_AT + op] += 1
            if size:
                words[_BYTES_AT + op] += size
                if code != NOT_ENTERED:
                    words[_SLOT_BYTES_AT + (code >> 8 & 7) * _OPS + op] += size  # slot_of(code)
            if self.machine.phase in _ASIDE:
                words[_ASIDE_CALLS_AT + op] += 1
                words[_ASIDE_BYTES_AT + op] += size

    def fetch_begins(self) -> SourceMeter | None:
        """The loop has entered the phase `data`, for batches that it makes itself."""
        meter = self.machine.fetching = self.data_phase
        if meter is not None:
            meter.begin()
        return meter

    def fetch_ends(self) -> None:
        """The loop is about to leave it."""
        self.machine.fetching = None
        if self.writer is not None:
            self.writer.words[_MARKED_AT] += 1

    def own_task(self) -> OwnTask:
        return OwnTask(self.task)

    # -- other ranks, and the device

    def find_group(self) -> Exchange | None:
        """Checks whether there is a process group, or a new one. Returns its exchange, or None."""
        distributed = sys.modules.get("torch.distributed")
        try:
            if distributed is None or not distributed.is_available() or not distributed.is_initialized():
                return self.exchange
            world = distributed.group.WORLD
            if self._world is not None and self._world() is world:
                return self.exchange
            from .exchange.exchange import Exchange
            from .exchange.side_group import server_of_store
            from .links import looks as links

            writer, machine = self.writer, self.machine
            if writer is None or not isinstance(machine, PhaseMachine) or not machine.mine():
                return self.exchange
            self._world = weakref.ref(world)
            self.world_size = distributed.get_world_size()
            rank = distributed.get_rank()
            if self._naming is not None:
                self._naming.joins(server_of_store(distributed), rank, self.world_size)
            taken = None
            if self.exchange is not None:
                taken = self.exchange.abandon()
                self.exchange = None
            if self.world_size > 1:
                ranks = tuple(sorted(distributed.get_process_group_ranks(world)))
                self.exchange = Exchange(machine, rank, ranks, raise_failure, self._exchange_state, taken)
                if self._links is None and links.enabled():
                    self._links = links.LinkLooks(machine, lambda: self.exchange)
        except Exception as error:  # the fence around the training
            self.fault("exchange", error)
        return self.exchange

    def _port_of_ranks(self) -> int:
        """The port of the store through which the ranks meet; 0: not known."""
        exchange = self.exchange
        return exchange.server[1] if exchange is not None and exchange.server is not None else 0

    def _exchange_state(self, state: str) -> None:
        self.state("exchange", state)

    def returned(self) -> None:
        """The optimizer of the last step was deleted. A signal may end this process at any moment, so the file must
        know."""
        try:
            if (writer := self.writer) is not None:
                writer.words[_RETURNED_AT] = time.monotonic_ns()
                writer.file.flush()
        except Exception as error:  # the fence around the training
            self.fault("step", error)

    def computes_on(self, device: Any) -> None:
        """A loss is on ``device``, an accelerator. Its clock measures phases from now on."""
        driven = self.device
        if driven is not None and (driven.type, driven.index) == (device.type, device.index):
            self._losses_elsewhere = 0
        else:
            # A process may have losses on several devices. Its clock stays on one while there are losses on that one.
            self._losses_elsewhere += 1
            if not self.on_device or self._losses_elsewhere > _LOSSES_ELSEWHERE:
                self._losses_elsewhere = 0
                self._find_device(device)
        self.on_device = True

    def _find_device(self, seen: Any = None) -> None:
        """Lets the clock of the accelerator that the training uses drive the machine, once there is an accelerator."""
        machine, writer = self.machine, self.writer
        try:
            if "torch" not in sys.modules or not isinstance(machine, PhaseMachine) or not machine.mine():
                return
            if writer is None or not self.works("device_clock"):
                return
            from .accelerators import allocated_on, device_in_use, events_of, uuid_of

            device = device_in_use(seen)
            if device is None or device == self.device:
                return
            events = events_of(device)
            machine.drive(events)
            machine.books.snapshots.allocated = allocated_on(device)
            if self._device_watcher is not None:
                self._device_watcher.stop(wait=0)
            self._device_probes = DeviceProbes(machine, events.asker, self._in_backward, self._frames)
            probes = self._device_probes.probes()
            probes += self._of_several(device, writer.words)
            self._device_watcher = Watcher(probes, "whyidle-device", budget=scaled(DEVICE))
            if self._watcher is not None:
                self._watcher.budget = scaled(BESIDE)
            self.device = device
            writer.set("device_index", device.index)
            writer.set_string("device", str(device))
            writer.set_string("uuid", nvml_uuid(uuid_of(device)))
            self.state("device_clock", "active")
        except Exception as error:  # the fence around the training
            self.fault("device_clock", error)

    def _in_backward(self) -> bool:
        return self.loop.steps.depth > 0

    def _of_several(self, device: Any, words: memoryview[int]) -> list[Probe]:
        """What looks at all devices of a process that may use several."""
        if device.type != "cuda":
            return []
        from .accelerators import uuid_of

        torch = sys.modules["torch"]
        self._in_use = InUse(words, torch.cuda, device.index or 0)
        utilisation = Utilisation(words, lambda index: nvml_uuid(uuid_of(torch.device("cuda", index))))
        return [Probe("utilisation", utilisation.look, PERIOD_SECONDS, brief=utilisation.look)]


def raise_failure(work: Any) -> None:
    """Raises the error of a finished operation if it failed. (``is_success`` would warn the user at each call.)"""
    wait = type(work).wait
    getattr(wait, "__wrapped__", wait)(work)


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _end_with_child(end: Callable[[bool], None]) -> None:
    """Registers ``end`` if multiprocessing has started this process. Its argument tells whether this is the last chance
    to end the ledger: a forked child runs finalizers, but no exit handlers."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    import multiprocessing
    from multiprocessing import util

    method = getattr(process.current_process(), "_start_method", None) or multiprocessing.get_start_method()
    util.Finalize(None, end, (method != "spawn",), exitpriority=-100)


def _in_checkpoint_process() -> bool:
    """Whether this is the process in which DCP saves. It has the environment of its rank, but is not a rank."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return False
    target = getattr(process.current_process(), "_target", None)
    return getattr(target, "__module__", "") == "torch.distributed.checkpoint._async_process_executor"


def _in_data_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
