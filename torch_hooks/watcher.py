"""The thread that watches an accelerator: whether it has work (`looks.py`), and whether it has stopped.

The host does not notice a hang in a collective, because it returns from `wait()` at once. The thread checks once a
second. If the training thread has passed no boundary for SILENT_NS, it asks the device which boundaries it has not
passed. It writes the result to words of the ledger that nobody else writes.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ledger.layout import SLOTS, WORD_AT
from . import background
from .looks import Looks
from .notices import debug
from .wait_codes import CONTINUES, PHASE_MASK, slot_of
from .wait_codes import LEAST as LEAST_WAIT

if TYPE_CHECKING:
    from .device_clock import Asker
    from .machine import PhaseMachine

LOOK_SECONDS = 1.0
SILENT_NS = 2_000_000_000
PATIENCE_SECONDS = 0.1
"""How long `close` waits for the thread."""
_PHASE_AT, _SINCE_AT, _SLOT_AT, _AHEAD_AT = (
    WORD_AT[name][0] for name in ("device_phase", "device_since_ns", "device_slot", "slot_ahead")
)


class Watcher:
    """Watches the device of one phase machine until it is stopped or the process ends.

    ``asker`` is called in the watching thread. It returns the object with which that thread asks the device.
    ``in_backward`` tells whether a backward pass runs.
    """

    def __init__(self, machine: PhaseMachine, asker: Callable[[], Asker], in_backward: Callable[[], bool] = bool):
        self._machine = machine
        self._make_asker = asker
        self._looks = Looks(machine, in_backward)
        self._known_asker: Asker | None = None
        self._running = threading.Lock()  # until it is released, the thread goes on; cheaper than an event
        self._running.acquire()
        self._stuck: Any = None  # the event that had not been passed at the last look
        self._since_ns = 0
        self._thread = background.start(self._run, "whyidle-watcher")

    def stop(self) -> None:
        """Stops the thread. Does not wait for it."""
        if self._running.locked():
            self._running.release()

    def close(self) -> None:
        """Stops the thread. Waits at most PATIENCE_SECONDS for it, because the device may block it."""
        self.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        try:
            looks, due_ns = self._looks, time.monotonic_ns() + round(LOOK_SECONDS * 1e9)
            while not self._running.acquire(timeout=looks.pause()):
                looks.look(self._asker)
                if (now := time.monotonic_ns()) >= due_ns:
                    due_ns = now + round(LOOK_SECONDS * 1e9)
                    self.look(now)
        except Exception:  # the device is lost or cannot be asked, so there is nothing to watch
            if debug():
                traceback.print_exc()

    def look(self, now_ns: int) -> None:
        """Writes the position of the device to the ledger if it has not changed since the last check."""
        device = self._machine.device
        if device is None or device.dead or device.closed or now_ns - device.host_ns < SILENT_NS:
            self._moves()
            return
        boundaries = device.in_flight()
        first = self._first_ahead(boundaries)
        if first is None:
            self._moves()
            return
        event, phase, _ = boundaries[first]
        if event is not self._stuck:
            # It entered this phase since the last check, or when the last charged interval ended.
            self._stuck, self._since_ns = event, now_ns if first else device.last_ns
            return
        ahead = [0] * SLOTS
        for _, later, _ in boundaries[first + 1 :]:
            if later >= LEAST_WAIT and not later & CONTINUES:
                ahead[slot_of(later)] += 1
        words = self._machine.words
        for slot, calls in enumerate(ahead):
            words[_AHEAD_AT + slot] = calls
        words[_SINCE_AT] = self._since_ns
        words[_SLOT_AT] = slot_of(phase) + 1 if phase >= LEAST_WAIT else 0
        words[_PHASE_AT] = (phase & PHASE_MASK) + 1

    def _moves(self) -> None:
        self._stuck = None
        words = self._machine.words
        if words[_PHASE_AT]:
            words[_PHASE_AT] = 0
            for slot in range(SLOTS):
                words[_AHEAD_AT + slot] = 0

    def _first_ahead(self, boundaries: list[tuple[Any, int, bool]]) -> int | None:
        """The index of the first boundary that the device has not passed; None if there is none, or it may not ask."""
        home = [number for number, (_, _, awaited) in enumerate(boundaries) if not awaited]
        low, high = 0, len(home)
        while low < high:
            middle = (low + high) // 2
            passed = self._has_passed(boundaries[home[middle]][0])
            if passed is None:
                return None
            if passed:
                low = middle + 1
            else:
                high = middle
        first = home[low] if low < len(home) else len(boundaries)
        # All boundaries before it are passed, except perhaps the end of a wait, whose event is on another stream.
        if first and boundaries[first - 1][2]:
            passed = self._has_passed(boundaries[first - 1][0])
            if not passed:
                return None if passed is None else first - 1
        return first if first < len(boundaries) else None

    def _has_passed(self, event: Any) -> bool | None:
        return self._asker.passed(event)

    @property
    def _asker(self) -> Asker:
        if self._known_asker is None:
            self._known_asker = self._make_asker()
        return self._known_asker
