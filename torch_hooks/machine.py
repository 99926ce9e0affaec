"""The phase machine: one phase is open at any time, so that every nanosecond counts in exactly one place.

    old = machine.enter(PHASE["data"])
    ...
    machine.leave(old)

Phases nest, and the innermost one counts. On a CPU rank, an interval is charged when it ends. On an accelerator, it is
passed to the device clock, which charges it when the device has passed the end of the interval.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..ledger.causes import CAUSE, PHASE
from ..ledger.layout import SEQUENCE, STRING_AT, UNKNOWN_SLOT, WORD_AT
from .books import Books, Parts, Splitter, Sums
from .device_clock import NOTHING, STEP, WINDOW, DeviceClock, EventSource, Interval
from .flusher import FLUSH_NS
from .handlers import of_a_handler, pass_on
from .in_flight import Launched, SideWait
from .meters.blocked import BlockedMeter
from .meters.collective import WaitMeter
from .meters.save import SaveMeter
from .suspensions import Suspensions
from .tasks import AwakeClock
from .wait_codes import CONTINUES, NOT_ENTERED, PEER_SHIFT, PHASE_MASK, Issues, WaitCode, slot_of
from .wait_codes import LEAST as LEAST_WAIT

if TYPE_CHECKING:
    from mmap import mmap

STARTUP, COMPUTE, EVAL, HOST, ROLLOUT = (PHASE[p] for p in ("startup", "compute", "eval", "host", "rollout"))
SHUTDOWN, RESTORE = PHASE["shutdown"], PHASE["restore"]
CHECKPOINT, COLLECTIVE, DATA = PHASE["checkpoint"], PHASE["collective"], PHASE["data"]
_PHASE_AT = WORD_AT["phase"][0]
_SINCE_AT = WORD_AT["phase_since_ns"][0]
_ACCOUNTED_AT = WORD_AT["accounted_ns"][0]
_SUSPENDED_AT = WORD_AT["cause_ns"][0] + CAUSE["suspended"]
_COLLECTIVES_AT = WORD_AT["collectives"][0]
_UNMEASURED_AT = WORD_AT["unmeasured"][0]
_FAULTS_AT = WORD_AT["faults"][0]
_OPEN_SLOT_AT = WORD_AT["open_slot"][0]
_OPEN_PEER_AT = WORD_AT["open_peer"][0]
_SLOT_CALLS_AT = WORD_AT["slot_calls"][0]

BESIDE = -2
"""`enter_side_wait` returns this minus the code."""
BASES = frozenset({STARTUP, COMPUTE, EVAL, HOST})
"""Base phases: those that the loop is in when no bracket (a phase that a hook has entered and will leave) is open."""
AROUND = BASES | {ROLLOUT, SHUTDOWN}
"""The phases in which a save, a restore or a start of workers counts for itself. Callbacks run inside rollouts."""

_METERED = frozenset({DATA, CHECKPOINT, EVAL, ROLLOUT})
"""The phases in which a meter measures each interval."""
_PLAIN = BASES - _METERED
_ASKED_SECONDS = 0.1
_NEVER = 1 << 62
_now = time.monotonic_ns
_thread = threading.get_ident


class Fetching(Splitter, Protocol):
    """Splits the parts of a wait for a batch."""

    def resume(self) -> None:
        """The next part of the wait begins, after another phase has interrupted it."""


class Aftermath(Protocol):
    def count(self, frame: FrameType | None, ns: int) -> int: ...

    def look(self, frame: FrameType, ns: int) -> Guess | None: ...


class Guess:
    """Holds the phase that a stretch turns out to be of, for the looks that the watcher had at it."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = NOT_ENTERED


class PhaseMachine:
    """Keeps the open phase of one rank and passes every closed interval to its books.

    Only the thread that created it may switch phases. During a backward pass, autograd's thread of the device
    (``helper``) may do so too, because the first thread waits for it. Calls from other threads are ignored. So are
    calls during an update, from a garbage collection or a signal handler that runs in the middle of whyidle's code.

    No method raises, except for what a signal handler of the program has raised meanwhile (handlers.py). Errors are
    counted in the ledger's ``faults``.
    """

    __slots__ = (
        "_asides",
        "_awaited",
        "_awake",
        "_awake_ns",
        "_busy",
        "_entered_ns",
        "_flush",
        "_flush_ns",
        "_issued",
        "_passed",
        "_side",
        "_slots",
        "_until",
        "acting_looks",
        "after",
        "apart",
        "apart_looks",
        "asking",
        "before",
        "blocked",
        "books",
        "capturing",
        "device",
        "evaluating",
        "fetching",
        "forward_looks",
        "guess",
        "helper",
        "helper_tid",
        "optimizes_on_cpu",
        "owner",
        "phase",
        "replaying",
        "saves",
        "saving",
        "since",
        "stepped_ns",
        "stepping",
        "steps",
        "suspensions",
        "turned",
        "waits",
        "words",
    )

    def __init__(self, words: memoryview, start_ns: int, flush: Callable[[int], None] = lambda older_than_ns: None):
        """``flush`` brings the ledger's file up to date, as `LedgerFile.flush`. It is called at some boundaries."""
        self.words = words
        self._flush = flush
        self._flush_ns = 0  # from when on a boundary calls it
        self.books = Books(words)
        self._asides = self.books.asides
        self._slots = self.books.slots
        self.device: DeviceClock | None = None
        self.waits: WaitMeter | None = None
        """On a CPU rank: measures how long its communication threads queue for a CPU."""
        self.blocked: BlockedMeter | None = None
        """On a CPU rank: measures how long its own code is blocked."""
        self.suspensions = Suspensions(lambda: self.since)
        """When the process was not allowed to run."""
        self.saving: SaveMeter | None = None
        """The meter of the open save."""
        self.fetching: Fetching | None = None
        """The meter of the open wait for a batch, which splits each part of it if other phases interrupt it."""
        self.saves = 0
        """How many saves were opened."""
        self.phase = STARTUP
        self.since = start_ns
        self.before = STARTUP
        """On an accelerator: the phase before the open one, or the wait."""
        self.turned: deque[tuple[int, int]] = deque(maxlen=64)
        """When intervals began that turned out to be of another phase, and that phase."""
        self.stepping = False  # whether the first step has begun
        self.steps = 0
        """Steps that the host has finished. An accelerator may lag behind."""
        self.stepped_ns = 0
        """When the host finished the last one, CLOCK_MONOTONIC."""
        self.helper = self.helper_tid = 0
        """Autograd's thread of the device, as `threading.get_ident` names it, and as the kernel numbers it. In a pass
        without one, it is the training thread."""
        self.owner = _thread()
        """The training thread, as `threading.get_ident` names it."""
        self._busy = False
        self.capturing = False
        """Whether a stream of the training thread is being captured into a graph."""
        self.replaying = False
        """Whether a graph is being launched."""
        self.optimizes_on_cpu = False
        """Whether all parameters of all optimizers are on the CPU."""
        self.evaluating = False
        """Whether what the loop launches between two steps is an evaluation."""
        self.apart = False
        """Whether it will be decided later what runs now: gradients are off, or a module is in evaluation mode."""
        self.apart_looks = self.acting_looks = self.forward_looks = 0
        """Looks of the watcher at such stretches, and those of them that found it below an environment, or what
        collects experience from one; or in the forward pass of a module. They only grow."""
        self.after: Aftermath | None = None
        """What follows an evaluation now, of which looks tell whether it still belongs to it."""
        self.guess: Guess | None = None
        """If what runs now is charged to `eval`, and it is not known yet whether it is an evaluation."""
        self.asking = threading.Lock()
        """Held by the thread that asks whether the home stream is empty."""
        self._awaited: Issues = ()  # the sends and receives that the open wait is for
        self._issued: Issues = ()  # the sends and receives that are being issued
        self._awake = AwakeClock()
        self._entered_ns = self._awake_ns = 0  # on an accelerator: the start of the last wait, on two clocks
        self._side: tuple[WaitCode, Any, int, int] | None = None  # the wait of another stream: see `_leave_side_wait`
        self._until: tuple[WaitCode, Any] | None = None  # the device's next wait, and the event that ends it
        self._passed: list[Interval] = []  # finished intervals of the device that are not in the books yet
        words[_PHASE_AT] = STARTUP
        words[_OPEN_SLOT_AT] = -1
        words[_SINCE_AT] = start_ns

    def was_in(self, phase: int, ns: int) -> None:
        """The open phase has just been created, but ``ns`` since its start were in another one."""
        ns = max(0, min(ns, _now() - self.since))
        self.update(self.books.charge, phase, ns)
        self.since = self.words[_SINCE_AT] = self.since + ns

    def mine(self) -> bool:
        """Whether the caller is the training thread."""
        return _thread() == self.owner

    def admits(self) -> bool:
        """Whether the caller may change the books now: it is a thread that may switch phases, and no update runs."""
        return not self._busy and ((caller := _thread()) == self.owner or caller == self.helper)

    def enter(self, phase: int) -> int:
        """Opens ``phase``. Returns what to pass to ``leave``: the previous phase, or NOT_ENTERED."""
        return NOT_ENTERED if phase == self.phase else self._open(phase)

    def _open(self, phase: int) -> int:
        old = self.phase
        try:
            return self.cut(phase)
        except BaseException:  # of a signal handler. So nobody will leave the phase
            self._return_to(old)
            raise

    def _close(self, phase: int, parts: Parts | Launched | Splitter | None = None) -> None:
        try:
            self.cut(phase, parts)
        except BaseException:  # of a signal handler
            self._return_to(phase)
            raise

    def _return_to(self, phase: int) -> None:
        """A signal handler has raised while a phase was entered or left. This one has to be open then."""
        if self.phase != phase and not self._busy:
            self.cut(phase)

    def enter_wait(self, code: WaitCode, issues: Issues = (), blocks: bool = False) -> int:
        """Opens a wait; ``issues``: the sends and receives that it waits for. Returns what to pass to ``leave``.

        ``blocks``: the host waits, too. On CUDA it uses a CPU meanwhile. A wait inside a wait of the same group is a
        part of it. This also applies to a wait whose group is not known.
        """
        slot = code >> 8 & 7  # slot_of(code)
        old = self.phase
        if old not in _PLAIN or self.device is not None:
            if old >= LEAST_WAIT and (slot == UNKNOWN_SLOT or slot == slot_of(old)):
                return NOT_ENTERED
            old = self._open(code)
            # Counted here instead of in `cut`: after a garbage collection inside a wait, the same wait continues.
            if old != NOT_ENTERED:
                self._awaited = issues
                words = self.words
                words[_COLLECTIVES_AT] += 1
                words[_SLOT_CALLS_AT + slot] += 1
                if self.device is not None:
                    self._entered_ns, self._awake_ns = self.since, _NEVER if blocks else self._awake()
            return old
        # The same for most waits of a CPU rank, with what `cut` does for them.
        if self._busy or ((caller := _thread()) != self.owner and caller != self.helper):
            return NOT_ENTERED
        now = _now()  # a handler of a signal may raise here
        self._busy = True
        words = self.words
        words[SEQUENCE] = sequence = words[SEQUENCE] + 1
        try:
            if now >= self._flush_ns:
                self._charge_suspended(now)
            words[self._slots[old]] += now - self.since
            self.since = words[_SINCE_AT] = now
            self.phase = code
            self._awaited = issues
            words[_PHASE_AT] = COLLECTIVE
            words[_OPEN_SLOT_AT] = slot
            words[_OPEN_PEER_AT] = code >> PEER_SHIFT
            words[_COLLECTIVES_AT] += 1
            words[_SLOT_CALLS_AT + slot] += 1
            if (waits := self.waits) is not None and now >= waits.due_ns:
                waits.begin(now)
        except BaseException as error:  # the fence around the training
            interrupt = not isinstance(error, Exception)
            if interrupt or of_a_handler(error):  # nobody will leave the wait
                self.phase = words[_PHASE_AT] = old
                words[_OPEN_SLOT_AT] = -1
            if interrupt:
                raise
            self._failed(error)
        finally:
            words[SEQUENCE] = sequence + 1
            self._busy = False
        if now >= self._flush_ns:
            self._flush_ns = now + FLUSH_NS // 2
            try:
                self._flush(FLUSH_NS)
            except BaseException:  # of a signal handler. So nobody will leave the wait
                self._return_to(old)
                raise
        return old

    def leave_wait(self, old: int) -> None:
        """Like ``leave(old)``, for a wait. It is quicker for most waits of a CPU rank.

        On an accelerator, the time in which the calling thread was awake is not a part of the wait: the host launched
        operations, such as DDP's copies of gradients, or the collective itself. All time of a wait that ``blocks`` the
        host is a part of it.
        """
        if self.device is not None:
            if old < NOT_ENTERED:
                self._leave_side_wait(self.device, BESIDE - old)
            elif old != NOT_ENTERED:
                awake = self._awake()
                worked = max(0, awake - self._awake_ns)
                self._close(old, Launched(self._entered_ns + worked, old if old < LEAST_WAIT else COMPUTE))
                self._entered_ns, self._awake_ns = self.since, awake  # of a wait around this one
            return
        if old not in _PLAIN or self.phase < LEAST_WAIT:
            if old != NOT_ENTERED:
                if self.waits is not None:
                    self.waits.end_first()
                self._close(old)
            return
        try:
            if self._busy or ((caller := _thread()) != self.owner and caller != self.helper):
                return
            now = _now()
        except BaseException:  # of a signal handler
            self._return_to(old)
            raise
        self._busy = True
        words = self.words
        words[SEQUENCE] = sequence = words[SEQUENCE] + 1
        try:
            if now >= self._flush_ns:
                self._charge_suspended(now)
            ns = now - self.since
            queue = waits.queued(ns) if (waits := self.waits) is not None else 0
            self.books.charge_wait(self.phase, ns, queue, now, self._awaited)
            self.since = words[_SINCE_AT] = now
        except Exception as error:  # the fence around the training
            self._failed(error)
        finally:
            self.phase = words[_PHASE_AT] = old
            words[_OPEN_SLOT_AT] = -1
            words[SEQUENCE] = sequence + 1
            self._busy = False
        if now >= self._flush_ns:
            self._flush_ns = now + FLUSH_NS // 2
            self._flush(FLUSH_NS)

    def enter_side_wait(self, code: WaitCode) -> int:
        """On an accelerator: a stream other than the home stream begins to wait. Returns what to pass to `leave_wait`.

        The rank waits only if its host then waits for that stream, for example in `.item()`. This is known at the next
        boundary, by how long the host was blocked.
        """
        return BESIDE - code if self.phase in BASES and self.cut(self.phase) != NOT_ENTERED else NOT_ENTERED

    def _leave_side_wait(self, device: DeviceClock, code: WaitCode) -> None:
        try:
            words = self.words
            words[_COLLECTIVES_AT] += 1
            words[_SLOT_CALLS_AT + slot_of(code)] += 1
            self._side = code, device.record_here(), self.since, self._awake()
        except Exception as error:  # the fence around the training
            self._failed(error)

    def wait_until(self, code: WaitCode, event: Any) -> None:
        """On an accelerator: the home stream is about to wait for an event that has timing.

        The wait begins now. The event ends it, so there is no ``leave``. Waits inside another wait: see `enter_wait`.
        """
        phase = self.phase
        if phase >= LEAST_WAIT:
            if slot_of(code) == UNKNOWN_SLOT or slot_of(code) == slot_of(phase):
                return
            phase |= CONTINUES
        if not self.admits():
            return
        self._until = code, event
        if self.cut(phase) != NOT_ENTERED:
            words = self.words
            words[_COLLECTIVES_AT] += 1
            words[_SLOT_CALLS_AT + slot_of(code)] += 1
        self._until = None

    def enter_from_base(self, phase: int) -> int:
        """Like ``enter``, but does nothing if another bracket than a rollout is open: what happens inside it belongs to
        it."""
        return self._open(phase) if self.phase in AROUND else NOT_ENTERED

    def enter_save(self, meter: SaveMeter) -> int:
        """Like ``enter_from_base``, for a save. ``meter`` splits each part of it, if other phases interrupt it."""
        old = self.enter_from_base(CHECKPOINT)
        if old != NOT_ENTERED:
            try:
                self.saves += 1
                self.saving = meter
                meter.begin()
                self._flush(0)  # a save may keep other Python threads from running for long
            except BaseException:  # of a signal handler. So nobody will leave the save
                self.saving = None
                self._return_to(old)
                raise
        return old

    def leave_save(self, old: int) -> None:
        try:
            self.leave(old)
        finally:
            if old != NOT_ENTERED:
                self.saving = None

    def leave(self, old: int, parts: Parts | Splitter | None = None) -> None:
        """Returns to the phase ``old``. ``parts`` splits the interval that ends now among causes."""
        if old != NOT_ENTERED:
            self._close(COMPUTE if old == STARTUP and self.stepping else old, parts)

    def leave_to(self, old: int, base: int, parts: Parts | Splitter | None = None) -> None:
        """Like ``leave``, but continues in ``base`` if ``old`` is a base phase."""
        if old != NOT_ENTERED:
            self._close(base if old in BASES else old, parts)

    def base(self, phase: int, *, measured: bool = True) -> None:
        """Switches to the base phase ``phase``. Does nothing inside a bracket. ``measured``: see `AsideMeter`."""
        if phase != self.phase and self.phase in BASES:
            self._asides.measures = measured
            self.cut(phase)

    def was(self, phase: int, *, looks: bool = True) -> None:
        """The open interval turns out to be of another phase. Call it just before the interval ends. ``looks``: whether
        looks in it are of that phase, too; not if that is only what the device still does afterwards."""
        if self.admits():
            self.phase = phase
            if looks:
                self.turned.append((self.since, phase))

    def begin(self) -> None:
        """The first step begins; the time before was startup. Later calls do nothing."""
        if not self.stepping and self.phase in BASES:
            self.stepping = self.cut(COMPUTE, None, WINDOW) != NOT_ENTERED

    def sums(self) -> Sums | None:
        """What `begin_again` needs to begin at the start of the open interval. None on an accelerator, which lags."""
        return self.books.sums(self.since) if self.device is None else None

    def begin_again(self, sums: Sums) -> None:
        """The first step has begun at ``sums``: what was before it was none of the training."""
        if self.device is None and not self.steps:
            self.update(self.books.begin_again, sums)

    def boundary(self, then: int) -> bool:
        """A step ends now. The loop continues in ``then``, or in the open bracket. Returns whether the step counted."""
        phase = self.phase
        if self.cut(then if phase in BASES else phase, None, STEP) == NOT_ENTERED:
            return False
        self.steps += 1
        self.stepped_ns = self.since
        return True

    def cut(self, phase: int, parts: Parts | Launched | Splitter | None = None, what: int = NOTHING) -> int:
        """Ends the open interval now and opens ``phase``. Returns the phase to return to later, or NOT_ENTERED.

        All other methods lead here, and the loop calls it directly at each boundary. So this is the hot path: after an
        operation of torch, hardly anything of it is in the caches, and a Python call costs up to 1 µs. So the work
        of a plain interval is inlined, and what is seldom needed is behind one comparison.
        """
        if self._busy or ((caller := _thread()) != self.owner and caller != self.helper):
            return NOT_ENTERED
        now = _now()  # a handler of a signal may raise here
        self._busy = True
        words = self.words
        old = self.phase
        device = self.device
        if parts is None and old in _METERED:
            if old == DATA:
                parts = self.fetching
            elif old == CHECKPOINT:
                parts = self.saving
            elif device is None:
                parts = self._asides
        if device is not None:
            self.before = old
            try:
                now = self._mark(device, parts, what)
            except BaseException:  # the user interrupts it while it waits for a place in the launch queue
                self._busy = False
                raise
        words[SEQUENCE] = sequence = words[SEQUENCE] + 1
        try:
            if device is None:
                if now >= self._flush_ns:
                    self._charge_suspended(now)
                ns = now - self.since
                if old >= LEAST_WAIT:
                    queue = waits.queued(ns) if (waits := self.waits) is not None else 0
                    self.books.charge_wait(old, ns, queue, now, self._awaited)
                elif parts is None:
                    words[self._slots[old]] += ns
                else:
                    split = parts if isinstance(parts, tuple) else parts.split(ns)
                    self.books.charge(old, ns, split)  # type: ignore[arg-type]  # only waits end with `Launched`
                if what:
                    blocked = self.blocked
                    if what == WINDOW:
                        self.books.open_window(now)
                    if blocked is not None and (now >= blocked.due_ns or blocked.owed):
                        self.books.take_blocked(blocked, now)
                    if what == STEP:
                        self.books.close_step(now)
            elif self._passed:
                self._charge_passed()
            self.since = words[_SINCE_AT] = now
            self.phase = phase
            if phase >= LEAST_WAIT:
                words[_PHASE_AT] = COLLECTIVE
                words[_OPEN_SLOT_AT] = phase >> 8 & 7  # slot_of(phase)
                words[_OPEN_PEER_AT] = phase >> PEER_SHIFT
                if (waits := self.waits) is not None and now >= waits.due_ns:
                    waits.begin(now)
            else:
                words[_PHASE_AT] = phase
                if old >= LEAST_WAIT:
                    words[_OPEN_SLOT_AT] = -1
                if phase == DATA:
                    if self.fetching is not None:
                        self.fetching.resume()
                elif phase == CHECKPOINT:
                    if self.saving is not None:
                        self.saving.begin()
                elif phase in _METERED and device is None:
                    self._asides.begin(phase)
        except Exception as error:  # the fence around the training
            if old in BASES and of_a_handler(error):
                phase = old  # who has asked for a bracket does not hear that it was opened
            self.phase = phase
            words[_PHASE_AT] = phase & PHASE_MASK  # the interval that could not be charged counts in this phase
            self._failed(error)
        finally:
            words[SEQUENCE] = sequence + 1
            self._busy = False
        if now >= self._flush_ns:
            self._flush_ns = now + FLUSH_NS // 2
            self._flush(FLUSH_NS)
        return old if old < LEAST_WAIT else old | CONTINUES

    def _charge_suspended(self, now: int) -> None:
        """Shortens the open interval of a CPU rank by the time in which it was suspended. The caller holds the seqlock.

        Called when the last look at the time is some tenths of a second ago, which is true after each suspension.
        """
        self.suspensions.look(now)
        if self.suspensions.found:
            ns = self.suspensions.take(self.since, now)
            self.words[_SUSPENDED_AT] += ns
            self.since += ns

    # -- accelerators

    def pause(self) -> None:
        """Switches no phases until ``resume``, because a stream is being captured."""
        self.capturing = self._busy = True
        # A question that is being asked would end the capture. It takes some µs, unless the device does not answer.
        if self.asking.acquire(timeout=_ASKED_SECONDS):
            self.asking.release()

    def resume(self) -> None:
        if self.capturing:
            self.capturing = self._busy = False

    def follow_stream(self) -> None:
        """Makes the training thread's current stream the home stream between two steps, too."""
        if self.device is not None and not self.device.at_home() and self.cut(self.phase) != NOT_ENTERED:
            self.device.rehome()

    def drive(self, events: EventSource) -> None:
        """From now on, the clock of a device measures the intervals."""
        if self.cut(self.phase) == NOT_ENTERED:
            return
        self._end_device()  # ends the clock of a previous device
        self.device = DeviceClock(events, self._passed.append, self.since)
        self.waits = self.blocked = None

    def issue(self, issues: Issues) -> None:
        """Sends and receives are issued now. On an accelerator, its clock sets their time later."""
        if self.device is None:
            now = _now()
            for issue in issues:
                issue.at = now
        elif self.phase < LEAST_WAIT and self.admits():
            self._issued = issues
            self.cut(self.phase)
            self._issued = ()

    def at_home(self) -> bool:
        """Whether a wait of the calling thread's current stream is a wait of the rank."""
        return self.device is None or self.device.at_home()

    def _mark(self, device: DeviceClock, parts: Parts | Launched | Splitter | None, what: int) -> int:
        """Passes the interval that ends now to the device clock. Returns the host time.

        Runs outside the seqlock: recording an event blocks while the launch queue is full, and readers of the ledger
        must not wait for that.
        """
        now = _now()
        try:
            if now >= self._flush_ns:
                self.suspensions.look(now)
            if parts is not None and not isinstance(parts, tuple):
                parts = parts.split(now - self.since)
            phase = self.phase
            if phase == HOST and parts is None:
                # What the device still has to do when the host is done was launched in this phase: an evaluation
                # between two steps, for example. It is not idle then.
                phase, parts = EVAL if self.evaluating else COMPUTE, Launched(now, HOST)
            side, self._side = self._side, None
            if side is not None:
                code, event, since, awake = side
                blocked = max(0, now - since - (self._awake() - awake))
                parts = SideWait(code, event, blocked, parts)  # type: ignore[arg-type, assignment]
            issues = self._awaited if phase >= LEAST_WAIT else self._issued
            device.mark(now, phase, parts, what, issues, self._until)  # type: ignore[arg-type]
            if what != NOTHING:
                if _thread() == self.owner:
                    device.rehome()
                device.harvest(now)
        except Exception as error:  # the fence around the training
            self._failed(error)
        return now

    def _charge_passed(self) -> None:
        """Charges the intervals whose end the device has passed. The caller holds the seqlock."""
        books, words = self.books, self.words
        passed = self._passed[:]
        self._passed.clear()
        for interval in passed:
            if self.suspensions.found:
                ns = self.suspensions.take(interval.end_ns - interval.ns, interval.end_ns)
                words[_SUSPENDED_AT] += ns
                interval = interval._replace(ns=interval.ns - ns)
            if interval.phase < 0:
                books.charge_unmeasured(interval.ns)
            elif interval.phase >= LEAST_WAIT:
                books.charge_wait(interval.phase, interval.ns, 0, interval.end_ns, interval.issues)
            else:
                books.charge(interval.phase, interval.ns, interval.parts)
                for issue in interval.issues:
                    issue.at = interval.end_ns
            words[_ACCOUNTED_AT] = interval.end_ns
            if interval.then == STEP:
                books.close_step(interval.end_ns)
            elif interval.then == WINDOW:
                books.open_window(interval.end_ns)
        if self.device is not None:
            words[_UNMEASURED_AT] = self.device.unmeasured

    def _end_device(self) -> None:
        if self.device is None:
            return
        try:
            self.device.close(self.since)
        except Exception as error:  # the fence around the training
            self._failed(error)
        self.update(self._charge_passed)

    def worked(self) -> int:
        """ns that were charged to WORK_CAUSES."""
        return self.books.worked()

    def reclassify(self, phase: int, right: int, ns: int, idle: int = 0) -> None:
        """``ns`` of ``phase`` in the open step were of the phase ``right``. See `Books.reclassify`."""
        self.books.reclassify(self.steps, phase, right, ns, idle)

    def label(self, slot: int, text: str) -> None:
        """Writes the name of a group to the ledger."""
        self._write(f"group{slot}", text.encode("utf-8", "replace")[: STRING_AT[f"group{slot}"][1]])

    def write_string(self, name: str, text: str) -> None:
        """Writes a string to the ledger; of a long one its end."""
        self._write(name, text.encode("utf-8", "replace")[-STRING_AT[name][1] :])

    def _write(self, name: str, text: bytes) -> None:
        at, size = STRING_AT[name]
        cast("mmap", self.words.obj)[at : at + size] = text.ljust(size, b"\0")

    def _failed(self, error: Exception) -> None:
        pass_on(error)
        self.words[_FAULTS_AT] += 1

    def update(self, change: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Runs ``change`` inside the seqlock, for changes of the books outside a phase switch."""
        if not self.admits():
            return
        self._busy = True
        self.words[SEQUENCE] += 1
        try:
            change(*args, **kwargs)
        except Exception as error:  # the fence around the training
            self._failed(error)
        finally:
            self.words[SEQUENCE] += 1
            self._busy = False

    def close(self) -> None:
        """Accounts for everything up to now. No other method may be called afterwards."""
        self.resume()
        if self.cut(self.phase) == NOT_ENTERED:
            return
        self._end_device()
        if self.blocked is not None and self.stepping:
            self.update(self.books.take_blocked, self.blocked, self.since)
        self.update(self.books.end)
