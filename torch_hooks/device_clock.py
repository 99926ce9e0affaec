"""The device clock: charges device time, not host time, to the phases of a rank, and never synchronises.

At every phase switch one timing event is recorded on the home stream: the training thread's current one at the last
step boundary, whichever is current now. Event i is recorded at host time t_i and is
passed by the device at D_i = max(t_i, when the work enqueued before it has drained). The interval D_i .. D_i+1 goes to
the phase that was open between t_i and t_i+1:

    for a wait that enqueues nothing   max(0, t_i+1 - max(t_i, drained)): the idle that the phase caused
    for compute                        what the device took for the work, and the gaps in which it had none
    for a wait of the stream           the exposed part of it, for instance of a collective

Intervals share their ends, so their sum is D_last - start by construction. docs/device-clock.md says how D is found,
and what this cannot see.

This module knows neither torch nor a device: `accelerators.DeviceEvents` brings the events.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from .books import Parts
    from .wait_codes import Issues

UNMEASURED = -1
"""As ``Interval.phase``: device time of which no phase can be told. Its cause is `unattributed`."""

NOTHING, STEP, WINDOW = 0, 1, 2
"""What happens at the end of an interval: nothing, a step boundary, the window opens."""

ANCHOR_NS = 2_000_000_000
"""An anchor serves this long. CUDA reports float32 milliseconds: below 2.048 s their steps are at most 0.13 us."""

BACKLOG = 256
"""Each time that so many more boundaries are in flight, ``mark`` harvests: a loop may have no steps."""

CLOSE_WAIT_NS = 1_000_000
"""How long ``close`` polls for the last boundaries. An event on an idle stream is done some microseconds later."""

_LEAST = 64


Question = Callable[[Any], "bool | None"]
"""Whether the device has passed an event; None where that may not be asked now."""


class EventSource(Protocol):
    """Timing events of one rank. No method may synchronise; ``record`` may block where the launch queue is full."""

    def rehome(self) -> bool:
        """Makes the calling thread's current stream the home stream -> whether that is another one."""
        ...

    def at_home(self) -> bool:
        """Whether the calling thread's current stream is the home stream."""
        ...

    def record(self) -> object | None:
        """Records an event on the home stream; None where none can be had (capture, too many in flight)."""
        ...

    def done(self, event: Any) -> bool | None:
        """Whether the device has passed ``event``; None where that may not be asked now (capture)."""
        ...

    def elapsed_ns(self, start: Any, end: Any) -> int | None:
        """Device ns from ``start`` to ``end``, both done; None for events that cannot be compared (two devices)."""
        ...

    def release(self, event: Any) -> None:
        """Hands back an event that will not be asked for again."""
        ...


class Interval(NamedTuple):
    """A closed interval of device time."""

    phase: int
    """Index into PHASES, or UNMEASURED."""
    ns: int
    """Its length on the device."""
    parts: Parts | None
    """Its split among causes, inferred: the host's split of the phase, at the same proportions."""
    then: int
    """What happens at its end: NOTHING, STEP or WINDOW."""
    end_ns: int
    """When it ended: device time mapped to the host's CLOCK_MONOTONIC. Never decreases."""
    issues: Issues = ()
    """Of a wait the sends and receives that were waited for; of another phase those that were issued at its end."""


class _Lost:
    """Boundaries without an event, joined to the next one that has one."""

    __slots__ = ("phase", "thens")

    def __init__(self, phase: int):
        self.phase = phase  # of all of them, else UNMEASURED
        self.thens: list[tuple[int, int]] = []  # (host_ns, then), where something was to happen


class _Boundary(NamedTuple):
    event: Any
    host_ns: int
    host_interval_ns: int  # since the boundary before, recorded or not
    phase: int
    parts: Parts | None
    then: int
    lost: _Lost | None
    issues: Issues


class DeviceClock:
    """Turns phase switches of the host into intervals of device time and hands them to ``sink``, in order.

    ``start_ns`` and all host times are ns of CLOCK_MONOTONIC; ``now`` reads it. Whoever calls gives host times that do
    not decrease, read before the call. Not thread-safe: the phase machine serialises. ``sink`` is called from within
    ``mark``, ``harvest`` and ``close``; the sum of what it was given is always ``last_ns - start_ns``.

    A fault of the source (a lost GPU, a destroyed context) never escapes. It is counted in ``faults`` and the clock is
    ``dead`` from then on: what was in flight, and all host time from there, is UNMEASURED. Host time in a phase is not
    device time, so the phases are not charged by it; and a GPU that fails so does not come back to the process.
    """

    __slots__ = (
        "_anchor",
        "_anchor_ns",
        "_done",
        "_elapsed",
        "_elsewhere",
        "_events",
        "_fresh",
        "_lost",
        "_not_before_ns",
        "_now",
        "_pending",
        "_record",
        "_release",
        "_sink",
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
    ):
        self._events = events
        self._record = events.record
        self._done = events.done
        self._elapsed = events.elapsed_ns
        self._release = events.release
        self._sink = sink
        self._now = now
        self._pending: deque[_Boundary] = deque()
        self._lost: _Lost | None = None
        self._anchor: Any = None
        self._anchor_ns = 0
        self._not_before_ns = 0  # the oldest pending event was seen unfinished then
        self._fresh = 0  # marks since the last harvest
        self._elsewhere = 0  # pending boundaries that are not on the home stream of now
        self.last_ns = start_ns
        """The end of the last interval given to the sink."""
        self.host_ns = start_ns
        """The host's last boundary."""
        self.unmeasured = 0
        """Boundaries that were not measured: no event was to be had, or it was not done at the close."""
        self.faults = 0
        """Exceptions of the event source."""
        self.dead = False
        self.closed = False

    # -- what the phase machine calls

    def mark(
        self, host_ns: int, phase: int, parts: Parts | None = None, then: int = NOTHING, issues: Issues = ()
    ) -> None:
        """The phase ``phase`` ended at ``host_ns``; ``parts`` splits the host time of that interval among causes.

        ``issues`` is handed on with the interval.
        """
        if self.dead or self.closed:
            self._mark_blind(host_ns, then)
            return
        host_interval = host_ns - self.host_ns
        self.host_ns = host_ns
        try:
            event = self._record()
        except Exception:
            self._lose(host_ns, phase, parts, then)
            self._die()
            return
        if event is None:
            self._lose(host_ns, phase, parts, then)
        else:
            self._pending.append(_Boundary(event, host_ns, host_interval, phase, parts, then, self._lost, issues))
            self._lost = None
        self._fresh += 1
        if event is not None and len(self._pending) % BACKLOG == 0:
            self._harvest(host_ns, 2 * BACKLOG)

    def rehome(self) -> None:
        """A step boundary was marked, by the training thread: its current stream is home from now on."""
        if self.dead or self.closed:
            return
        try:
            if self._events.rehome():
                self._elsewhere = len(self._pending)
        except Exception:
            self._die()

    def at_home(self) -> bool:
        """Whether the calling thread's current stream is the home stream; true where nobody can be asked."""
        return self.dead or self._events.at_home()

    def harvest(self, host_ns: int) -> None:
        """Charges the intervals that the device has passed, at most some more than came since the last harvest."""
        if not (self.dead or self.closed):
            limit = _LEAST + 2 * self._fresh
            self._fresh = 0
            self._harvest(host_ns, limit)

    def in_flight(self) -> list[tuple[Any, int]]:
        """The boundaries that the device may not have passed yet, oldest first: (event, phase that ends there).

        For a thread that watches. The training thread goes on meanwhile, so the answer may be out of date at once.
        """
        return [(boundary.event, boundary.phase) for boundary in tuple(self._pending)]

    def close(self, host_ns: int, wait_ns: int = CLOSE_WAIT_NS) -> None:
        """Charges what is done within ``wait_ns`` and reports the rest, up to ``host_ns``, as UNMEASURED.

        Mark the end of the open phase before. Later marks are ignored.
        """
        if self.closed:
            return
        if not self.dead:
            self._harvest(host_ns, len(self._pending))
            deadline = host_ns + wait_ns
            while self._pending and (now := self._now()) < deadline:
                self._harvest(now, len(self._pending))
        self._write_off()
        if host_ns > self.last_ns:
            self._emit(UNMEASURED, host_ns)
        self.closed = True
        self._anchor = None

    # -- boundaries that the device has passed

    def _harvest(self, host_ns: int, limit: int) -> None:
        pending = self._pending
        if not pending:
            return
        try:
            # A stream is first in, first out: the newest one answers for all of them.
            all_done = not self._elsewhere and self._done(pending[-1].event)
            # The clock is read after the question: the device was past the event before the answer came.
            seen_ns = self._now()
            while pending and limit > 0:
                boundary = pending[0]
                if not all_done:
                    done = self._done(boundary.event)
                    if not done:
                        if done is False:
                            self._not_before_ns = host_ns
                        return
                    seen_ns = self._now()
                end_ns = self._place(boundary.event, boundary.host_ns, seen_ns)
                pending.popleft()
                if self._elsewhere:
                    self._elsewhere -= 1
                limit -= 1
                if boundary.parts is None and boundary.lost is None:  # most of them
                    self._emit(boundary.phase, end_ns, None, boundary.then, boundary.issues)
                else:
                    self._charge(boundary, end_ns)
        except Exception:
            self._die()

    def _place(self, event: Any, recorded_ns: int, seen_ns: int) -> int:
        """When the device passed ``event``, on the host's clock.

        It did so after the event was recorded, after it was last seen unfinished, and before it was seen done. An
        estimate outside these bounds shows that the anchor is off (the clocks drift, or it was recorded behind work of
        unknown length): the anchor is moved, so that an error is corrected once, not in every interval that follows.
        """
        # Comparisons, not max and min: this runs at every boundary.
        earliest = recorded_ns
        if self._not_before_ns:
            earliest = max(recorded_ns, self._not_before_ns)
            self._not_before_ns = 0
        elapsed = None if self._anchor is None else self._elapsed(self._anchor, event)
        if elapsed is None:
            self._move_anchor(event, earliest)
            return max(earliest, self.last_ns)
        # Always from the anchor, never from the event before: else each interval would add its own rounding.
        at = self._anchor_ns + elapsed
        bounded = earliest if at < earliest else seen_ns if at > seen_ns else at
        if bounded != at:
            self._anchor_ns += bounded - at
        if elapsed >= ANCHOR_NS:
            self._move_anchor(event, bounded)
        else:
            self._release(event)
        last_ns = self.last_ns
        return bounded if bounded > last_ns else last_ns

    def _move_anchor(self, event: Any, at_ns: int) -> None:
        if self._anchor is not None:
            self._release(self._anchor)
        self._anchor = event
        self._anchor_ns = at_ns

    def _charge(self, boundary: _Boundary, end_ns: int) -> None:
        phase, parts, lost = boundary.phase, boundary.parts, boundary.lost
        if lost is not None:
            if lost.phase != phase or parts is not None:
                phase, parts = UNMEASURED, None
            self._emit_lost(lost, phase, end_ns)
        if parts is not None:
            parts = _scaled(parts, end_ns - self.last_ns, boundary.host_interval_ns)
        self._emit(phase, end_ns, parts, boundary.then, boundary.issues)

    def _emit(
        self, phase: int, end_ns: int, parts: Parts | None = None, then: int = NOTHING, issues: Issues = ()
    ) -> None:
        ns = end_ns - self.last_ns
        self.last_ns = end_ns
        self._sink(Interval(phase, ns, parts, then, end_ns, issues))

    # -- boundaries without an event

    def _lose(self, host_ns: int, phase: int, parts: Parts | None, then: int) -> None:
        self.unmeasured += 1
        lost = self._lost
        if lost is None:
            lost = self._lost = _Lost(phase)
        if lost.phase != phase or parts is not None:
            lost.phase = UNMEASURED
        if then != NOTHING:
            lost.thens.append((host_ns, then))

    def _emit_lost(self, lost: _Lost, phase: int, until_ns: int) -> None:
        """What was to happen at lost boundaries, each as close to its host time as the measured ends allow."""
        for host_ns, then in lost.thens:
            self._emit(phase, min(max(host_ns, self.last_ns), until_ns), None, then)

    def _write_off(self) -> None:
        """Reports all boundaries in flight as UNMEASURED, up to the host time of the last mark."""
        gone = _Lost(UNMEASURED)
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
        self._anchor = None
        self._write_off()
        if self.host_ns > self.last_ns:
            self._emit(UNMEASURED, self.host_ns)

    def _mark_blind(self, host_ns: int, then: int) -> None:
        if not self.closed:
            self.unmeasured += 1
            self.host_ns = host_ns
            self._emit(UNMEASURED, max(host_ns, self.last_ns), None, then)


def _scaled(parts: Parts, ns: int, host_ns: int) -> Parts:
    """The host's split of a phase at the same proportions of its ``ns`` on the device. All integers, clamped."""
    rest = ns
    scaled = []
    for cause, part in parts:
        if part >= 0:
            part = min(part * ns // host_ns, rest) if host_ns > 0 else 0
            rest -= part
        scaled.append((cause, part))
    return tuple(scaled)
