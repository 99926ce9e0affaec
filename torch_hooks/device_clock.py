"""The device clock: charges device time, not host time, to the phases of a rank, and never synchronises.

At every phase switch, one timing event is recorded on the home stream. This is the stream that was the training
thread's current one at the last step boundary; another stream may be current now. Event i is recorded at host time t_i.
The device passes it at D_i = max(t_i, when the work enqueued before it has drained). The interval D_i .. D_i+1 goes to
the phase that was open between t_i and t_i+1:

    for a wait that enqueues nothing   max(0, t_i+1 - max(t_i, drained)): the idle time that the phase caused
    for compute                        the device's time for the work, and the gaps in which it had none
    for a wait of the stream           the exposed part of it, for example of a collective: what is after the host's own
                                       work in it, because until then an idle device waits for the host

If the stream waits for an event that has timing, that event is the end of the wait: D = max(D of the boundary before
it, when that event was passed). No boundary has to be recorded there.

Intervals share their ends, so their sum is always D_last - start. docs/device-clock.md explains how D is found, and
what the device clock cannot see.

This module does not depend on torch or on a device: `accelerators.DeviceEvents` provides the events.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .anchor import Anchor
from .handlers import pass_on
from .in_flight import UNMEASURED, Boundary, Launched, Lost, SideWait, count_one_by_one, count_passed

if TYPE_CHECKING:
    from .books import Parts
    from .wait_codes import Issues, WaitCode

NOTHING, STEP, WINDOW = 0, 1, 2
"""What happens at the end of an interval: nothing, a step boundary, or the window opens."""

BACKLOG = 256
"""``mark`` harvests whenever this many boundaries have been added, because a loop may have no steps."""

LOOK_NS = 5_000_000
"""``mark`` harvests if the last harvest was this long ago. With longer pauses, it is less well known when the device
passed the events."""

CLOSE_WAIT_NS = 10_000_000
"""How long ``close`` waits for the last boundaries. An event on an idle stream is done some microseconds later."""

_CLOSE_POLL_SECONDS = 0.0001
_LEAST = 64


class Asker(Protocol):
    """Asks the device, from one thread. An answer is None if it may not ask now."""

    def passed(self, event: Any) -> bool | None:
        """Whether the device has passed an event."""
        ...

    def empty(self) -> bool | None:
        """Whether the home stream has no work."""
        ...


class EventSource(Protocol):
    """Timing events of one rank. No method may synchronize; ``record`` may block while the launch queue is full."""

    def rehome(self) -> bool:
        """Makes the calling thread's current stream the home stream. Returns whether that is a different one."""
        ...

    def at_home(self) -> bool:
        """Whether the calling thread's current stream is the home stream."""
        ...

    def record(self) -> object | None:
        """Records an event on the home stream; None if that is not possible (capture, too many in flight)."""
        ...

    def record_here(self) -> object | None:
        """Like ``record``, on the calling thread's current stream."""
        ...

    def awaited(self, event: Any) -> object:
        """Converts an event of the training, with timing, to the type that ``record`` returns. Do not release it."""
        ...

    def done(self, event: Any) -> bool | None:
        """Whether the device has passed ``event``; None if it may not be asked now (capture)."""
        ...

    def elapsed_ns(self, start: Any, end: Any) -> int | None:
        """Device ns from ``start`` to ``end``, both done; None if they cannot be compared (two devices)."""
        ...

    def release(self, event: Any) -> None:
        """Returns an event that is not needed any more."""
        ...


class Interval(NamedTuple):
    """A closed interval of device time."""

    phase: int
    """Index into PHASES, or UNMEASURED."""
    ns: int
    """Its length on the device."""
    parts: Parts | None
    """Its split among causes. This is inferred: the host's split of the phase, in the same proportions."""
    then: int
    """What happens at its end: NOTHING, STEP or WINDOW."""
    end_ns: int
    """When it ended: device time mapped to the host's CLOCK_MONOTONIC. Never decreases."""
    issues: Issues = ()
    """For a wait: the sends and receives that it waited for. For another phase: those that were issued at its end."""


class DeviceClock:
    """Converts phase switches of the host to intervals of device time and passes them to ``sink``, in order.

    ``start_ns`` and all host times are ns of CLOCK_MONOTONIC; ``now`` reads it. Callers must pass host times that do
    not decrease and that were read before the call. Not thread-safe: the phase machine serializes the calls. ``mark``,
    ``harvest`` and ``close`` call ``sink``. The sum of all intervals is always ``last_ns - start_ns``.

    Errors of the source (a lost GPU, a destroyed context) are caught and counted in ``faults``. From then on the clock
    is ``dead``: the intervals in flight, and all later host time, are UNMEASURED. They are not charged to phases,
    because host time in a phase is not device time, and the process cannot use a GPU again after such an error.
    """

    __slots__ = (
        "_anchor",
        "_done",
        "_elsewhere",
        "_events",
        "_fresh",
        "_look_ns",
        "_lost",
        "_not_before_ns",
        "_now",
        "_pending",
        "_record",
        "_sink",
        "_sleep",
        "closed",
        "dead",
        "faults",
        "host_ns",
        "last_ns",
        "unmeasured",
    )

    def __init__(
        self,
        events: EventSource,
        sink: Callable[[Interval], None],
        start_ns: int,
        now: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._events = events
        self._record = events.record
        self._done = events.done
        self._anchor = Anchor(events.elapsed_ns, events.release)
        self._sink = sink
        self._now = now
        self._sleep = sleep
        self._pending: deque[Boundary] = deque()
        self._lost: Lost | None = None
        self._not_before_ns = 0  # when the oldest pending event was last seen unfinished
        self._fresh = 0  # marks since the last harvest at a step
        self._look_ns = 0  # when `mark` harvests again
        self._elsewhere = 0  # pending boundaries that are on a previous home stream
        self.last_ns = start_ns
        """The end of the last interval that was passed to the sink."""
        self.host_ns = start_ns
        """The host's last boundary."""
        self.unmeasured = 0
        """Boundaries that were not measured: there was no event for them, or it was not done at the close."""
        self.faults = 0
        """Exceptions of the event source."""
        self.dead = False
        self.closed = False

    # -- what the phase machine calls

    def mark(
        self,
        host_ns: int,
        phase: int,
        parts: Parts | Launched | SideWait | None = None,
        then: int = NOTHING,
        issues: Issues = (),
        until: tuple[WaitCode, Any] | None = None,
    ) -> None:
        """The phase ``phase`` ended at ``host_ns``; ``parts`` splits the host time of that interval among causes.

        For a wait, ``parts`` says until when the host itself was busy in it: the wait begins after that. In another
        phase, it may say that another stream waited.
        ``issues`` is passed on with the interval. ``until`` is a wait that begins at this boundary, and the event that
        ends it: an event of the training, with timing, for which the home stream waits next.
        """
        if self.dead or self.closed:
            self._mark_blind(host_ns, then)
            return
        host_interval = host_ns - self.host_ns
        self.host_ns = host_ns
        try:
            event = self._record()
        except Exception as error:
            self._lose(host_ns, phase, parts, then)
            pass_on(error)
            self._die()
            return
        if event is None:
            self._lose(host_ns, phase, parts, then)
            if until is not None and self._lost is not None:
                self._lost.phase = UNMEASURED  # the wait is a part of the lost interval
                self.unmeasured += 1
        else:
            pending = self._pending
            pending.append(Boundary(event, host_ns, host_interval, phase, parts, then, self._lost, issues))
            self._lost = None
            if until is not None:
                awaited = self._events.awaited(until[1])
                pending.append(Boundary(awaited, host_ns, 0, until[0], None, NOTHING, None, (), awaited=True))
        self._fresh = fresh = self._fresh + 1
        if host_ns >= self._look_ns or not fresh % BACKLOG:
            self._harvest(host_ns, 2 * BACKLOG)

    def rehome(self) -> None:
        """Makes the training thread's current stream the home stream. It calls this after it has marked a step."""
        if self.dead or self.closed:
            return
        try:
            if self._events.rehome():
                self._elsewhere = len(self._pending)
        except Exception as error:
            pass_on(error)
            self._die()

    def at_home(self) -> bool:
        """Whether the calling thread's current stream is the home stream; true if the clock is dead."""
        return self.dead or self._events.at_home()

    def record_here(self) -> object | None:
        """An event with timing on the calling thread's current stream; None if there can be none now."""
        return None if self.dead or self.closed else self._events.record_here()

    def harvest(self, host_ns: int) -> None:
        """Emits intervals that the device has passed: at most _LEAST, plus twice the marks since the last harvest."""
        if not (self.dead or self.closed):
            limit = _LEAST + 2 * self._fresh
            self._fresh = 0
            self._harvest(host_ns, limit)

    def in_flight(self) -> list[tuple[Any, int, bool]]:
        """Boundaries that the device may not have passed yet, oldest first: (event, phase that ends there, awaited).

        An awaited boundary is the end of a wait that began at the boundary before it; its event is not on the home
        stream. The watcher thread calls this while the training thread continues, so the result may be outdated.
        """
        return [(boundary.event, boundary.phase, boundary.awaited) for boundary in self._pending.copy()]

    def close(self, host_ns: int, wait_ns: int = CLOSE_WAIT_NS) -> None:
        """Emits the intervals that the device passes within ``wait_ns``, then the time up to ``host_ns`` as UNMEASURED.

        Mark the end of the open phase before this call. Later marks are ignored.
        """
        if self.closed:
            return
        if not self.dead:
            self._harvest(host_ns, len(self._pending))
            deadline = host_ns + wait_ns
            while self._pending and (now := self._now()) < deadline:
                self._sleep(_CLOSE_POLL_SECONDS)
                self._harvest(now, len(self._pending))
        self._write_off()
        if host_ns > self.last_ns:
            self._emit(UNMEASURED, host_ns)
        self.closed = True
        self._anchor.drop()

    # -- boundaries that the device has passed

    def _harvest(self, host_ns: int, limit: int) -> None:
        pending = self._pending
        self._look_ns = host_ns + LOOK_NS
        if not pending:
            return
        try:
            if self._elsewhere:
                passed, unfinished = count_one_by_one(pending, min(limit, self._elsewhere), self._done)
            else:
                passed, unfinished = count_passed(pending, min(limit, len(pending)), self._done)
            # The clock is read after the queries: the device had passed the events before it answered.
            seen_ns = self._now()
            for _ in range(passed):
                boundary = pending[0]
                end_ns = self._place(boundary, seen_ns)
                pending.popleft()
                if self._elsewhere:
                    self._elsewhere -= 1
                if end_ns is None:
                    self._emit(UNMEASURED, self.last_ns)
                elif boundary.parts is None and boundary.lost is None:  # most of them
                    self._emit(boundary.phase, end_ns, None, boundary.then, boundary.issues)
                else:
                    self._charge(boundary, end_ns)
            if unfinished:
                self._not_before_ns = host_ns
        except Exception as error:
            pass_on(error)
            self._die()

    def _place(self, boundary: Boundary, seen_ns: int) -> int | None:
        """When the device passed a boundary, on the host's clock; None if that is not known."""
        last_ns = self.last_ns
        if boundary.awaited:
            at = self._anchor.passed_ns(boundary.event)
            if at is None:
                return None
            if at > seen_ns:
                at = seen_ns
        else:
            earliest = boundary.host_ns
            if self._not_before_ns:
                earliest = max(earliest, self._not_before_ns)
                self._not_before_ns = 0
            at = self._anchor.place(boundary.event, earliest, seen_ns)
        return at if at > last_ns else last_ns

    def _charge(self, boundary: Boundary, end_ns: int) -> None:
        phase, parts, lost = boundary.phase, boundary.parts, boundary.lost
        if lost is not None:
            if lost.phase != phase or parts is not None:
                phase, parts = UNMEASURED, None
            self._emit_lost(lost, phase, end_ns)
        if isinstance(parts, SideWait):
            parts = self._wait_beside(parts, end_ns)
        if isinstance(parts, Launched):
            if (until_ns := min(parts.until_ns, end_ns)) > self.last_ns:
                self._emit(parts.phase, until_ns)
            parts = None
        elif parts is not None:
            parts = _scaled(parts, end_ns - self.last_ns, boundary.host_interval_ns)
        self._emit(phase, end_ns, parts, boundary.then, boundary.issues)

    def _wait_beside(self, side: SideWait, end_ns: int) -> Parts | Launched | None:
        """Emits the wait of another stream at the start of an interval, as far as it kept the host. Returns the rest.

        It has no length if the host went on: the ranks of a group must have the same number of waits.
        """
        until_ns = self.last_ns
        if side.event is not None:
            if side.blocked_ns and self._done(side.event):
                passed_ns = self._anchor.passed_ns(side.event)
                if passed_ns is not None and passed_ns - until_ns <= 2 * side.blocked_ns:
                    until_ns = max(until_ns, min(passed_ns, end_ns))
            self._events.release(side.event)
        self._emit(side.code, until_ns)
        return side.parts

    def _emit(
        self, phase: int, end_ns: int, parts: Parts | None = None, then: int = NOTHING, issues: Issues = ()
    ) -> None:
        ns = end_ns - self.last_ns
        self.last_ns = end_ns
        self._sink(Interval(phase, ns, parts, then, end_ns, issues))

    # -- boundaries without an event

    def _lose(self, host_ns: int, phase: int, parts: Parts | Launched | SideWait | None, then: int) -> None:
        self.unmeasured += 1
        lost = self._lost
        if lost is None:
            lost = self._lost = Lost(phase)
        if lost.phase != phase or parts is not None:
            lost.phase = UNMEASURED
        if then != NOTHING:
            lost.thens.append((host_ns, then))

    def _emit_lost(self, lost: Lost, phase: int, until_ns: int) -> None:
        """Emits the step ends and window starts of lost boundaries, each as near to its host time as the measured ends
        allow."""
        for host_ns, then in lost.thens:
            self._emit(phase, min(max(host_ns, self.last_ns), until_ns), None, then)

    def _write_off(self) -> None:
        """Emits all boundaries in flight as UNMEASURED, up to the host time of the last mark."""
        gone = Lost(UNMEASURED)
        self.unmeasured += len(self._pending)
        for boundary in self._pending:
            if boundary.lost is not None:
                gone.thens += boundary.lost.thens
            if boundary.then != NOTHING:
                gone.thens.append((boundary.host_ns, boundary.then))
        if self._lost is not None:
            gone.thens += self._lost.thens
        self._pending.clear()
        self._lost = None
        self._emit_lost(gone, UNMEASURED, max(self.host_ns, self.last_ns))

    def _die(self) -> None:
        self.faults += 1
        self.dead = True
        self._anchor.drop()
        self._write_off()
        if self.host_ns > self.last_ns:
            self._emit(UNMEASURED, self.host_ns)

    def _mark_blind(self, host_ns: int, then: int) -> None:
        if not self.closed:
            self.unmeasured += 1
            self.host_ns = host_ns
            self._emit(UNMEASURED, max(host_ns, self.last_ns), None, then)


def _scaled(parts: Parts, ns: int, host_ns: int) -> Parts:
    """Scales the host's split of a phase to its ``ns`` on the device. All values are integers and clamped."""
    rest = ns
    scaled = []
    for cause, part in parts:
        if part >= 0:
            part = min(part * ns // host_ns, rest) if host_ns > 0 else 0
            rest -= part
        scaled.append((cause, part))
    return tuple(scaled)
