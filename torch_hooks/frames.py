"""Samples where the training thread is: at which line of the training's own code, and whether it has a CPU.

The time of a cause does not say which code has spent it. So the watcher looks at the thread's Python frame in each
round, while the loop's own phases are open, and counts lines and functions. It writes the most frequent one.

A look also tells whether the thread waits for Python's lock: it then sleeps in futex(2) on an address inside the
interpreter's own data, where the lock is (`_PyRuntime`). The watcher holds the lock when it looks, so a thread that was
running also waits for it then. Therefore the thread counts as waiting only if it has had a CPU for less than half of
the time since the last look, and another Python thread has computed for half of the rest. To queue for a CPU counts as
to have one. The other thread may work in bursts, which are shorter than the time between looks. So it is enough if this
holds for the steps just before the look. If the two take turns, no single look can tell. Then the looks that find the
thread blocked on something else say how much of its blocked time is due to that, and the lock has the rest.

On an accelerator only looks that find the device without work count. Such a look lets the other threads go on for a
moment, and sees which of them does. So it tells of bursts of any length.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter, deque
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from ..ledger.below import COPY, OPTIMIZER, TESTING
from ..ledger.causes import PHASE, WORK_PHASES
from ..ledger.layout import WORD_AT
from . import modes
from .awaited import awaited_by
from .below import (
    IN_THREADS,
    LOGGING,
    Below,
    Function,
    caller_of_model,
    copies,
    enters_loader,
    is_apart,
    is_of_torch,
    makes_tensors,
    uses_torch,
)
from .lasting import Lasting
from .late import PROMPT, Lateness
from .thread_state import BLOCKED, ENOUGH, HELD, LOCK, RECENT, RUNS, Hidden, Spent, ThreadState, at_most, busiest
from .threads import OURS, OwnThreads, named
from .user_code import Place, line_of, places
from .wait_codes import NOT_ENTERED

if TYPE_CHECKING:
    from .machine import Guess, PhaseMachine

_FIRST_NS, _LONGEST_NS = 50_000_000, 8_000_000_000
"""For how long a look stands: the first one, and the most (`Lateness.stands_for`). Looks are more frequent in the first
seconds."""
STUCK_NS = 1_000_000_000
"""A phase that is open for longer has its line in the ledger."""
_LOCKED_NS = 4_000_000_000
"""For how long after such a look the lock is taken to be contended, and for as long as the last one was ago: looks have
random times."""
_RECENT_NS = 1_000_000_000
"""What `BlockedMeter` has measured tells about a look if it is not older."""
_MOST = 64
"""The most functions, and lines of a function, that are counted."""

_MOMENT_SECONDS = 0.0005
"""For how long a look lets the other threads go on. It then has to wait for Python's lock like the training thread."""
_MUCH, _BUSY = 0.05, 0.2
"""Another Python thread disturbs looks if it has computed for _MUCH of the time since the last one. If it has done so
for _BUSY of it, it may be what the training thread waits for."""

_KEEP_THE_LOCK = ("torch.distributed", "torch.nn.utils")
"""Parts of torch in which calls may wait for the device with Python's lock: operations of DTensors do."""
_EVERY = 16
"""The most frequent place is written again when looks stand for a part of 1/_EVERY more time."""

_FAULT = b"-1 0x0 0x0"
"""What proc_pid_syscall(5) has for a thread that is blocked, but in no call."""
_FAULT_NS = 100_000_000
"""A thread that waits for pages all the time does so at least this often. The kernel reads some 128 KiB at once."""
_EVAL, _HOST = PHASE["eval"], PHASE["host"]
_WORKS = frozenset(PHASE[phase] for phase in WORK_PHASES)
_UNNAMED = (PHASE["compute"], _HOST)
_OWN = _WORKS | {_HOST}
"""The phases that `host_blocked` is taken from, so that shares of looks are shares of its time."""
_PHASE_AT, _SINCE_AT, _BASE_AT, _LOCK_AT, _RETURNED_AT, _WORK_AT = (
    WORD_AT[name][0] for name in ("phase", "phase_since_ns", "base_looks", "lock_looks", "returned_ns", "work_looks")
)
_BASE_NS_AT, _SQUARE_AT, _WORK_NS_AT, _INSIDE_AT = (
    WORD_AT[name][0] for name in ("base_looked_ns", "base_looked_square", "work_looked_ns", "inside_looks")
)
_OPEN_AT, _OPEN_BLOCKED_AT, _OPEN_CPU_AT = (
    WORD_AT[name][0] for name in ("open_looks", "open_blocked_looks", "open_cpu_ns")
)


def enabled() -> bool:
    return os.environ.get("WHYIDLE_FRAMES") != "0"


class Look(NamedTuple):
    """A look that found the thread on a CPU."""

    stack: list[Place]
    below: Function | None
    in_torch: bool
    inside: bool
    """It was in Python code of the model: an operation of torch would have given Python's lock up at once."""
    acts: bool
    """It was below an environment, where it is decided later what that is: see `Below.acts`."""
    call: bytes = b""
    """What blocked it, on an accelerator; empty if nothing did."""
    in_model: bool = True
    """Whether a module, a backward pass or an optimizer was on the stack. At idle looks, not if an optimizer was the
    innermost of these: it is not compiled with the model."""
    ns: int = 0
    """For how long it stands."""
    locked: bool = False
    """Whether the thread waited for Python's lock, which another thread held."""


NOWHERE = Look([], None, False, False, False)
"""Nothing tells where the thread was."""


class Call(NamedTuple):
    """A call that has kept Python's lock."""

    at: tuple[str, int]
    """Its file and line."""
    look: Look | None
    """A look that found it. None: it may have waited for torch's device."""


class _Open:
    """The looks at the phase that is open. The books learn of it when it ends, and one that hangs does not."""

    __slots__ = ("_blocked", "_cpu_ns", "_looks", "_since")

    def __init__(self) -> None:
        self._since = self._looks = self._blocked = self._cpu_ns = 0

    def count(self, words: memoryview, since: int, blocked: bool, stuck: bool) -> None:
        cpu = time.process_time_ns()
        if since != self._since:
            self._since, self._looks, self._blocked, self._cpu_ns = since, 0, 0, cpu
        self._looks += 1
        self._blocked += blocked
        if stuck:
            words[_OPEN_AT], words[_OPEN_BLOCKED_AT] = self._looks, self._blocked
            words[_OPEN_CPU_AT] = cpu - self._cpu_ns


class Frames:
    """Looks at the training thread. The watcher's thread calls it; `device_idle` is called by the one that asks the
    device.

    ``tid``: the training thread, as the kernel numbers it.
    """

    def __init__(self, machine: PhaseMachine, tid: int, threads: OwnThreads):
        self._machine = machine
        self._task = ThreadState(tid)
        self._autograd: ThreadState | None = None
        self._states: dict[int, ThreadState] = {}  # of the other threads
        self._threads = threads
        self._host = Counts(machine, "host")
        self._blocked = Counts(machine, "blocked")
        self._outside = Counts(machine, "outside")
        self._inside = Counts(machine, "inside")
        self._launching = Counts(machine, "launching")
        self._below, self._awaited = Below(machine), Below(machine)
        self._called = Below(machine)  # of `call`, which waits for no lock
        self._waits: set[tuple[str, int]] = set()  # lines of such calls
        self._unsettled: list[tuple[Guess, Look]] = []
        self._counting = threading.Lock()  # of the two threads
        self._idle: dict[str, Look | None] = {}  # the last ones of `device_idle`, by kind
        self.device_answers = False
        """Whether looks at the device tell when it has no work. Then only those count that found it so: in the others
        the training thread may wait for the device."""
        self._always: set[tuple[str, int]] | None = None  # the functions that were on the stack at each look
        self._last_ns = self._last_spent = 0
        self._stepping = False  # at the last look, in any phase
        self._open = _Open()
        self.crowded_until_ns = 0
        """Another Python thread has computed most of the time between the last two looks. That is taken to be so for as
        long after them."""
        self._last_python: dict[tuple[int, str, int], Look] = {}
        """By phase and function: the last look that found the thread at work below it, and not in torch."""
        self._alone = True  # whether no other Python thread has computed for long since the look before
        self._others: Spent = {}  # at the last look
        self._idle_others: Spent = {}  # at the last look that found a device without work
        self._idle_ns = 0  # when that was
        self._holders: Counter[str] = Counter()
        self._otherwise: deque[bool] = deque(maxlen=RECENT)  # whether looks found it blocked, but not on the lock
        self._hidden = Hidden()
        self._major = 0, 0  # when its page faults that waited for a read were last asked for, and how many they were
        self._lasting = Lasting(machine, threads)
        self._late = Lateness()
        self.expect = self._late.expect

    def look(self) -> None:
        with self._counting:
            self._look()

    def device_idle(self, phase: int, look: Look | None, ns: int) -> None:
        """The device had no work in this phase, `host` or one of work. ``look``: what the training thread did then.
        None: it went on with what it did at the last such look. ``ns``: for how long the look stands."""
        with self._counting:
            kind = "host" if phase == _HOST else "work"
            look = self._idle[kind] = look or self._idle.get(kind)
            if look is None:
                return
            if look.call:
                self._blocked.add(look.stack, self._always, ns)
            self._count_in(kind, look._replace(ns=ns))

    def _count_in(self, kind: str, look: Look) -> None:
        """``kind``: `host` or `work`."""
        words, ns = self._machine.words, look.ns
        if kind == "host":
            self._host.add(look.stack, self._always, ns)
        else:
            words[_WORK_AT] += 1
            words[_WORK_NS_AT] += ns
            if look.locked:
                words[_LOCK_AT] += 1
                return
            if look.below is None and not (look.in_torch or look.acts):
                self._outside.add(look.stack, self._always, ns)
            elif look.inside:
                self._inside.add(look.stack, self._always, ns)
            elif look.below is None and not look.in_model:
                self._launching.add(look.stack, self._always, ns)
        if look.below is not None:
            self._below.count(look.below, kind, look.call, ns)

    def purpose(self) -> str:
        """The kind of function that the training thread is in, or that it waits for: one of BELOW; empty if it is not
        known."""
        with self._counting:
            frame = sys._current_frames().get(self._machine.owner)
            below = self._below.find(frame, learns=False)
            another = self._of_another(frame) if below is None and frame is not None else None
        return below[0] if below is not None else another[0][0] if another is not None else ""

    def writers(self) -> set[int | None]:
        """The threads that may write what the training thread saves, as the kernel numbers them: the one for which it
        waits, if that is known; otherwise all of Python's that do not log."""
        with self._counting:
            frames = sys._current_frames()
            try:
                frame = frames.get(self._machine.owner)
                if frame is not None and (thread := awaited_by(frame)) is not None:
                    return {thread.native_id}
                return {
                    thread.native_id
                    for thread in threading.enumerate()
                    if (below := self._awaited.find(frames.get(thread.ident or 0), learns=False)) is None
                    or below[0] != LOGGING
                }
            finally:
                frames.clear()  # it has the frame of this function, too

    def stack(self) -> FrameType | None:
        """Where the training thread is. Do not keep it: it has the tensors of the training."""
        return sys._current_frames().get(self._machine.owner)

    def call(self) -> Call | None:
        """What the training thread calls; None if that is not known. Keeps Python's lock, so that it does not go on."""
        frame = sys._current_frames().get(self._machine.owner)
        if frame is None:
            return None
        at = frame.f_code.co_filename, line_of(frame)
        if not makes_tensors(frame) and (is_of_torch(frame) or uses_torch(frame) or not is_apart(frame)):
            return Call(at, None)
        found, stack = self._called, [*islice(places(frame), 1)]
        below = found.find(frame)
        inside = found.in_model and not found.ends_in_torch
        in_model = found.at_work and not found.in_optimizer
        return Call(at, Look(stack, below, found.in_model, inside, False, in_model=in_model))

    def kept_the_lock(self, call: Call | None) -> bool:
        """Whether the training thread kept Python's lock, for which a look has waited, in code that is not torch's, and
        so did not wait for the device.

        ``call``: it kept it in this one, for longer than Python code may. One of an extension may have waited for the
        device, so only calls of packages that work without torch tell, and those that make a tensor of a list. None: it
        has gone on to the next call that gives the lock up. Calls of torch that keep the lock mostly do so for long.
        """
        if call is not None:
            if call.look is None and len(self._waits) < _MOST:
                self._waits.add(call.at)
            return call.look is not None
        frame = sys._current_frames().get(self._machine.owner)
        if frame is None:
            return False
        at = frame.f_code.co_filename, line_of(frame)
        return at not in self._waits and not is_of_torch(frame, *_KEEP_THE_LOCK)

    def idle_look(self, forced: bool, before: bool = False, host: bool = False) -> Look | None:
        """The device has no work. ``forced``: the training thread ran Python code; ``before``: until it called what it
        is in. ``host``: no phase is open, so a thread in torch's loader has just called it, and mostly was elsewhere
        when the look was due. The ``in_torch`` of what this returns says whether that thread launches operations."""
        with self._counting:
            frame = sys._current_frames().get(self._machine.owner)
            if frame is not None and host and enters_loader(frame):
                return NOWHERE
            if frame is not None and before and is_of_torch(frame):
                frame = caller_of_model(frame)
            if frame is None:
                return None
            task = self._launches_in(frame)
            try:
                state = task.state()
            except OSError:  # the thread has ended
                return None
            call = task.call if state == BLOCKED and task is self._task else b""
            below = self._below.find(frame)
            own = forced or call != b""  # the loop's own code runs, or waits for something else than the device
            inside = own and self._below.in_model and not self._below.ends_in_torch
            launches = self._below.in_model or not (own or not uses_torch(frame))
            here, in_optimizer = [*islice(places(frame), 1)], self._below.in_optimizer
            if in_optimizer and here and here[0].library:  # not if it is the training's own optimizer
                here = [here[0]._replace(library=OPTIMIZER)]
                launches = launches and not self._machine.optimizes_on_cpu
            in_model = self._below.at_work and not in_optimizer
            another = self._of_another(frame) if call and below is None else None
            moves, at = copies(frame), (id(frame), frame.f_lasti)
            del frame  # it has the tensors of the training
            if another is not None:
                below, call = another[0], _blocker_of(another[1])
            rival = self._rival()
            if launches and state == RUNS and not self._below.at_work and rival is None and self._goes_on(task, at):
                launches, here = False, [one._replace(library=COPY) if moves else one for one in here]
            locked = rival is not None and self._is_locked(task, state, *rival)
            return Look(here, below, launches, inside, False, call, in_model, locked=locked)

    def _of_another(self, frame: FrameType) -> tuple[Function, int] | None:
        """What another thread does for which the training thread waits, if that is of a known kind, and the number that
        the kernel gives it."""
        thread = awaited_by(frame)
        below = self._awaited.find(sys._current_frames().get(thread.ident or 0)) if thread is not None else None
        if thread is None or thread.native_id is None or below is None or below[0] not in IN_THREADS:
            return None
        return below, thread.native_id

    def _goes_on(self, task: ThreadState, at: tuple[int, int]) -> bool:
        """Whether a thread is in the same call a moment later, and runs: an operation on the CPU, or a copy that the
        host makes. Launches are shorter. ``at``: the `id` of its frame, and the instruction."""
        time.sleep(_MOMENT_SECONDS)
        frame = sys._current_frames().get(self._machine.owner)
        same = frame is not None and (id(frame), frame.f_lasti) == at
        del frame
        try:
            return same and task.state() == RUNS
        except OSError:  # the thread has ended
            return False

    def _launches_in(self, frame: FrameType) -> ThreadState:
        """The thread that launches operations: in a backward pass, autograd's thread of the device."""
        tid = self._machine.helper_tid
        if not (tid and is_of_torch(frame, "torch.autograd")):
            return self._task
        if self._autograd is None or self._autograd.tid != tid:
            self._autograd = ThreadState(tid)
        return self._autograd

    def _rival(self) -> tuple[int, str] | None:
        """The other Python thread that has computed most since the last look at a device without work, if that is
        much: its number and name."""
        now, before, others = time.monotonic_ns(), self._idle_others, self._spent_by_others()
        passed, self._idle_others, self._idle_ns = now - self._idle_ns, others, now
        computed = {tid: ns - before[tid][1] for tid, (_, ns) in others.items() if tid in before}
        most = max(computed, key=computed.__getitem__, default=0)
        return (most, others[most][0]) if most and computed[most] >= _MUCH * passed else None

    def _is_locked(self, task: ThreadState, state: int, tid: int, name: str) -> bool:
        """Whether a thread waits for Python's lock now or in a moment, and hardly has a CPU meanwhile because another
        Python thread goes on. ``state``: that of now."""
        try:
            begun, before, other, turns = time.monotonic_ns(), task.spent(), self._spent_by(tid), task.turns()
            time.sleep(_MOMENT_SECONDS)
            passed, grown = time.monotonic_ns() - begun, task.spent() - before
            states = state, task.state()
            # A thread that is still queued for a CPU has had no turn, and the kernel adds its time only afterwards.
            waited = BLOCKED not in states and (LOCK in states or task.turns() > turns)
            if not waited or 2 * grown >= passed or 2 * (self._spent_by(tid) - other) < passed:
                return False
        except OSError:  # one of the threads has ended
            return False
        until = begun + passed + _LOCKED_NS
        self._note_lock(name, until)
        self._threads.lock.seen_until_ns = until
        return True

    def _look(self) -> None:
        self._count_settled()
        machine = self._machine
        words, now = machine.words, time.monotonic_ns()
        phase, since = words[_PHASE_AT], words[_SINCE_AT]
        stands = self._late.stands_for(now)
        ns = min(stands, _LONGEST_NS) if self._stepping else _FIRST_NS
        self._stepping = machine.stepping
        stuck = now - since >= STUCK_NS
        if not (machine.stepping or stuck):
            self._lasting.ends()
            return
        own = machine.stepping and phase in _OWN
        frame = sys._current_frames().get(machine.owner)
        held, forced, long, brief = self._late.how(now) if own else PROMPT
        try:
            state = self._state(now, held, long) if own and frame is not None else RUNS
        except OSError:  # another thread has its number
            frame = None
        if frame is None:  # the training thread has ended: a trainer has run the loop in a thread
            words[_RETURNED_AT] = now
            return
        stack = list(places(frame))
        self._lasting.found(stack, frame, since, now) if stuck else self._lasting.ends()
        below = self._below.find(frame) if machine.stepping else None
        call = self._task.call if state in (BLOCKED, LOCK) else b""
        if state == BLOCKED and below is None and machine.stepping:
            another = self._of_another(frame)
            if another is not None:
                below, call = another[0], _blocker_of(another[1])
        if machine.stepping and stack:
            functions = {(place.file, place.first_line) for place in stack}
            self._always = functions if self._always is None else self._always & functions
        if not own:
            return
        after = machine.after
        if machine.device is not None:  # looks at the device count there
            after = None
        guess = after.look(frame, ns) if after is not None and phase in _UNNAMED else None
        kept = forced or (held and not is_of_torch(frame))
        if (kept or not self._major[0]) and self._faults(now) and state == RUNS:
            frame = None  # it has the tensors of the training, which goes on now
            if (long and self._hidden.are_blocked()) or self._waits_for_pages():
                state, call = BLOCKED, _FAULT
        if machine.device is None:
            self._open.count(words, since, state in (BLOCKED, LOCK), stuck)
        words[_BASE_AT] += 1
        words[_BASE_NS_AT] += ns
        words[_SQUARE_AT] += (ns // 1_000_000) ** 2
        modes.count(words)
        if machine.apart:  # so `Evaluations` finds out whether it is a rollout, and all of it counts as one
            machine.apart_looks += 1
            machine.acting_looks += self._below.acts
            machine.forward_looks += self._below.forward
        if state == LOCK and machine.device is None:
            words[_LOCK_AT] += 1
        if state == HELD:
            return
        if machine.device is None and state in (BLOCKED, LOCK):
            self._blocked.add(stack, self._always, ns)
            if below is not None:
                self._below.count(below, "blocked", call, ns)
            return
        if self._below.acts and (machine.apart or phase not in _UNNAMED):
            below = None
        elif below is not None and below[0] == TESTING and phase == _EVAL:
            below = None  # it counts as that already
        inside = self._below.in_torch and not self._below.ends_in_torch and forced
        acts = self._below.acts and machine.apart
        found = Look(stack, below, self._below.in_torch, inside, acts, call if state == BLOCKED else b"")
        found = self._as_due(phase, found, frame, held, brief)._replace(ns=ns)
        guess = machine.guess if phase == _EVAL else guess
        if guess is None:
            self._count(phase, found)
        elif len(self._unsettled) < _MOST:
            self._unsettled.append((guess, found))

    def _as_due(self, phase: int, look: Look, frame: FrameType | None, held: bool, brief: bool) -> Look:
        """What the thread did when the look was due. Python code gives the lock up after the switch interval, but
        operations of torch do so at once. A look that comes before that interval, in torch, was due in Python code: in
        what was last seen at work for the same function. If nothing was, in what has called the model: between two
        operations of a model, Python hardly runs for PROMPT_NS."""
        always = self._always or () if self._machine.words[_BASE_AT] >= ENOUGH else ()
        keys = [(phase, place.file, place.first_line) for place in look.stack]
        own = [key for key in keys if key[1:] not in always] or keys[:1]
        if not look.in_torch:
            for key in () if held else own:  # if held, it is in the call for which it gave the lock up
                self._last_python.pop(key, None)
                self._last_python[key] = look
            while len(self._last_python) > _MOST:
                del self._last_python[next(iter(self._last_python))]
        elif (held or brief) and self._alone:
            if (key := next((key for key in own if key in self._last_python), None)) is not None:
                return self._last_python[key]
            if held and frame is not None and not self._machine.words[_INSIDE_AT]:
                stack = list(places(caller_of_model(frame)))
                return look._replace(stack=stack, in_torch=False, inside=False) if stack else look
        return look

    def _count(self, phase: int, look: Look) -> None:
        """Counts a look that found the thread on a CPU, or anywhere if there is an accelerator."""
        machine = self._machine
        if self.device_answers:
            return
        if phase == _HOST or machine.device is None:
            self._count_in("host" if phase == _HOST else "work", look)

    def _count_settled(self) -> None:
        """Counts the looks at stretches of which it is known now whether they were evaluations."""
        looks, self._unsettled = self._unsettled, []
        for guess, look in looks:
            if guess.phase == NOT_ENTERED:
                self._unsettled.append((guess, look))
            else:
                self._count(guess.phase, look)

    # -- what the thread does

    def _state(self, now: int, held: bool, long: bool) -> int:
        """Whether the training thread has a CPU (or queues for one), is blocked, or waits for Python's lock."""
        seen = self._task.state()
        spent = self._task.spent()
        passed, grown = now - self._last_ns, spent - self._last_spent
        self._last_ns, self._last_spent = now, spent
        holder, computed = self._busiest()
        self._alone = computed < _MUCH * passed
        self.crowded_until_ns = now + passed if 2 * computed > passed else 0
        if seen == BLOCKED and held:
            seen = HELD
        recently = seen == LOCK and computed > 0 and now - self._threads.lock.awaited_ns < _RECENT_NS
        if computed < _BUSY * passed and not recently:
            self._otherwise.clear()
            self._threads.lock.not_held = True
        else:
            self._otherwise.append(seen == BLOCKED)
        locked = recently or (seen == LOCK and 2 * grown < passed and 2 * computed >= passed - grown)
        self._hidden.add(long, seen == BLOCKED or locked, passed, grown)
        if locked or len(self._otherwise) >= ENOUGH:
            self._note_lock(holder, now + passed + _LOCKED_NS)
        if locked:
            self._threads.lock.seen_until_ns = now + passed + _LOCKED_NS
        return LOCK if locked else RUNS if seen == LOCK else seen

    def _note_lock(self, holder: str, until: int) -> None:
        """Python's lock is taken to be contended until then."""
        self._holders[holder] += 1
        if len(self._holders) > _MOST:
            self._holders = Counter(dict(self._holders.most_common(_MOST // 2)))
        self._machine.write_string("lock_thread", self._holders.most_common(1)[0][0])
        lock = self._threads.lock
        lock.until_ns, lock.blocked_otherwise = until, at_most(self._otherwise)

    def _faults(self, now: int) -> bool:
        """Whether the thread has often waited for pages of files since this was last asked. It holds Python's lock
        meanwhile, so a look comes between two such waits."""
        (since, before), found = self._major, self._task.faults()
        self._major = now, found
        return since > 0 and found - before >= max(1, (now - since) // _FAULT_NS)

    def _waits_for_pages(self) -> bool:
        """Whether the thread does so in the next moment, and hardly computes. Lets it go on meanwhile."""
        task, begun, before = self._task, time.monotonic_ns(), self._major[1]
        try:
            spent = task.spent()
            time.sleep(_MOMENT_SECONDS)
            return task.faults() > before and 2 * (task.spent() - spent) < time.monotonic_ns() - begun
        except OSError:  # it has ended
            return False

    def _busiest(self) -> tuple[str, int]:
        """The other threads of ``threading`` that have computed for most ns since the last look, and these ns."""
        before, now = self._others, self._spent_by_others(self._others)
        self._others = now
        while self._threads.gone:
            name, tid, cpu = self._threads.gone.popleft()
            if not name.startswith(OURS):
                now = {**now, tid: (name, cpu)}
        return busiest(before, now)

    def _spent_by_others(self, before: Spent | None = None) -> Spent:
        """The other threads of ``threading``. ``before``: what was read last."""
        found: Spent = {}
        states, self._states = self._states, {}
        for thread in threading.enumerate():
            tid, name = thread.native_id, named(thread)
            if tid is None or tid == self._task.tid or len(found) >= _MOST or thread.ident == self._machine.helper:
                continue
            if name.startswith(OURS):
                continue
            state = states.get(tid) or ThreadState(tid)
            try:
                found[tid] = name, state.spent()
                self._states[tid] = state
            except OSError:  # it has ended, and `gone` has it the next time
                found[tid] = (before or {}).get(tid, (name, 0))
        return found

    def _spent_by(self, tid: int) -> int:
        """Raises OSError if that thread has ended."""
        if (state := self._states.get(tid)) is None:
            raise ProcessLookupError
        return state.spent()


def _blocker_of(tid: int) -> bytes:
    """What a thread of this process is blocked in: a line of proc_pid_syscall(5), empty if in nothing."""
    try:
        task = ThreadState(tid)
        return task.call if task.state() == BLOCKED else b""
    except OSError:  # it has ended
        return b""


class Counts:
    """Counts places in one kind of time. Writes the most frequent one to the ledger."""

    def __init__(self, machine: PhaseMachine, kind: str):
        self._machine = machine
        self._line = f"{kind}_line"
        self._looks_at, self._looked_at, self._at_at, self._at_ns_at = (
            WORD_AT[f"{kind}_{word}"][0] for word in ("looks", "looked_ns", "at", "at_ns")
        )
        self._functions: dict[tuple[str, int], dict[Place, tuple[int, int]]] = {}
        """Function -> place -> (looks, the ns for which they stand)."""
        self._again_ns = 0  # after how many ns that looks stand for, the most frequent place is written

    def add(self, stack: list[Place], always: set[tuple[str, int]] | None, ns: int) -> None:
        """``always``: the functions that are always on the stack, such as the one with the loop. To name such a
        function would say nothing, so its lines count separately. ``ns``: for how long the look stands."""
        words = self._machine.words
        words[self._looks_at] += 1
        words[self._looked_at] += ns
        if stack:
            place = stack[0]
            lines = self._functions.get((place.file, place.first_line))
            if lines is None and len(self._functions) < _MOST:
                lines = self._functions[place.file, place.first_line] = {}
            if lines is not None and (place in lines or len(lines) < _MOST):
                looks, stand = lines.get(place, (0, 0))
                lines[place] = looks + 1, stand + ns
        if words[self._looked_at] >= self._again_ns:
            self._again_ns = words[self._looked_at] + words[self._looked_at] // _EVERY
            self._write(always or set())

    def _write(self, always: set[tuple[str, int]]) -> None:
        best = max((self._best_of(key, always) for key in self._functions), default=None)
        if best is not None:
            stand, looks, place = best
            self._machine.words[self._at_at], self._machine.words[self._at_ns_at] = looks, stand
            self._machine.write_string(self._line, f"{place} {place.library or '-'}")

    def _best_of(self, key: tuple[str, int], always: set[tuple[str, int]]) -> tuple[int, int, Place]:
        """For how many ns the training was in a function, or at its most frequent line; the looks; and that line."""
        lines = self._functions[key]
        by_line: dict[int, tuple[int, int]] = {}
        for place, (looks, stand) in lines.items():
            counted, stood = by_line.get(place.line, (0, 0))
            by_line[place.line] = counted + looks, stood + stand
        line = max(by_line, key=lambda one: by_line[one][1])
        place = max((place for place in lines if place.line == line), key=lambda one: lines[one][1])
        counted = [by_line[line]] if key in always else by_line.values()
        return sum([stood for _, stood in counted]), sum([looks for looks, _ in counted]), place
