"""Whether an accelerator has stopped: the boundary that it has not passed, and since when.

The host does not notice a hang in a collective, because it returns from `wait()` at once. So if the training thread has
passed no boundary for SILENT_NS, the watcher asks the device which boundaries it has not passed. It writes the result
to words of the ledger that nobody else writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ledger.layout import SLOTS, WORD_AT
from .looks import Looks
from .wait_codes import CONTINUES, PHASE_MASK, slot_of
from .wait_codes import LEAST as LEAST_WAIT
from .watcher import Probe

if TYPE_CHECKING:
    from .device_clock import Asker
    from .frames import Frames
    from .machine import PhaseMachine

LOOK_SECONDS = 1.0
SILENT_NS = 2_000_000_000
_PHASE_AT, _SINCE_AT, _SLOT_AT, _AHEAD_AT = (
    WORD_AT[name][0] for name in ("device_phase", "device_since_ns", "device_slot", "slot_ahead")
)


class DeviceProbes:
    """The probes that ask the device of one phase machine.

    ``asker`` is called in the watching thread. It returns the object with which that thread asks the device.
    ``in_backward``, ``frames``: see `Looks`.
    """

    def __init__(
        self,
        machine: PhaseMachine,
        asker: Callable[[], Asker],
        in_backward: Callable[[], bool] = bool,
        frames: Frames | None = None,
    ):
        self._machine = machine
        self._make_asker = asker
        self._looks = Looks(machine, in_backward, frames)
        self.close = self._looks.close
        self._known_asker: Asker | None = None
        self._stuck: Any = None  # the event that had not been passed at the last look
        self._since_ns = 0

    def probes(self) -> list[Probe]:
        def stuck() -> None:
            self.look(time.monotonic_ns())

        return [
            Probe(
                "looks",
                lambda: self._looks.look(self._asker),
                expect=self._looks.expect,
                brief=lambda: self._looks.look(self._asker, brief=True),
            ),
            Probe("stuck", stuck, LOOK_SECONDS, brief=stuck),
        ]

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
