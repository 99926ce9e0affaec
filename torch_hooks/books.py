"""The books of one rank: charges device-time to causes, closes steps, and splits waits once the others are known.

Everything here is arithmetic on the ledger's words. Whoever calls it says how long an interval was and in which phase
it lay: the phase machine on a CPU rank, the device clock on a CUDA rank, where intervals close some time after the host
has left them, but in the same order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from mmap import mmap
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from ..ledger.causes import CAUSE, CAUSE_FAMILY, CAUSES, LATE_FAMILIES, PHASE, PHASE_CAUSE, PHASES, STEP_BUCKETS_SECONDS
from ..ledger.layout import RING_AT, RING_STEPS, STEP_WORDS, WORD_AT

if TYPE_CHECKING:
    from .meters.blocked import BlockedMeter

Parts = tuple[tuple[int, int], ...]
"""A split of an interval: (cause, ns) for all but the last cause, then (cause, -1) for what is left."""


class Splitter(Protocol):
    """Splits an interval when its length is known."""

    def split(self, ns: int) -> Parts | None:
        """The parts of an interval of ``ns``; None leaves it whole."""
        ...


_CAUSE_AT = WORD_AT["cause_ns"][0]
_CAUSE_END = _CAUSE_AT + len(CAUSES)
_PENDING = WORD_AT["pending_ns"][0]
_WINDOW = WORD_AT["window_ns"][0]
_WINDOW_CAUSE_AT = WORD_AT["window_cause_ns"][0]
_WAITED = WORD_AT["waited_ns"][0]
_WINDOW_WAITED = WORD_AT["window_waited_ns"][0]
_STEPS = WORD_AT["steps"][0]
_STEP_NS = WORD_AT["step_ns"][0]
_BUCKETS = WORD_AT["step_buckets"][0]
_CAUSE_BYTE, _CAUSES_BYTES = _CAUSE_AT * 8, len(CAUSES) * 8
_RING_BYTE, _ENTRY_BYTES = RING_AT * 8, len(STEP_WORDS) * 8
_ENTRY_HEAD = Struct("<4q")  # the words of STEP_WORDS before the causes
_BASE = WORD_AT["base_step"][0]
_UNTIL = WORD_AT["recompute_until"][0]
_BOUNDS_NS = tuple(int(bound * 1e9) for bound in STEP_BUCKETS_SECONDS)

_COLLECTIVE = CAUSE["collective"]
_COLLECTIVE_PHASE = PHASE["collective"]
_COMPUTE_PHASES = (PHASE["compute"], PHASE["eval"])

_LATE_CAUSES = tuple(
    tuple(
        i
        for i, cause in enumerate(CAUSES)
        if cause not in ("network", "straggler", "collective")
        and {"lost": "compute"}.get(CAUSE_FAMILY[cause], CAUSE_FAMILY[cause]) == family
    )
    for family in LATE_FAMILIES
)


class StepWaits(NamedTuple):
    """What one step of this rank puts into the exchange; times in ns.

    ``own`` is the rank's own time per LATE_FAMILIES from the end of the previous step's last collective to the end of
    this step's: whatever makes a rank arrive late at a collective lies there, and not between optimizer steps.
    """

    wait: int
    own: tuple[int, ...]
    wall: int = 0
    """How long the step took."""
    number: int = 0
    """The step's number in this process, from 1: not a time."""


class Books:
    """Charges intervals to the causes of one ledger. Not thread-safe: the phase machine serialises."""

    __slots__ = (
        "_before",
        "_last_end",
        "_map",
        "_mark",
        "_waited",
        "on_step",
        "repeating",
        "slots",
        "splitting",
        "words",
    )

    def __init__(self, words: memoryview):
        self.words = words
        self._map = cast(mmap, words.obj)  # its move() copies without making an object
        self.repeating = False
        self.slots = [_CAUSE_AT + CAUSE[PHASE_CAUSE[phase]] for phase in PHASES]
        """Phase -> the word that an interval in it is added to."""
        self.splitting = False
        self.on_step: Callable[[StepWaits], None] | None = None
        """The exchange, while it holds back the waits of steps."""
        self._waited = 0  # waited_ns at the last step boundary
        self._last_end = 0
        self._mark = [0] * len(CAUSES)  # causes at the end of the last collective
        self._before = self._mark  # the same, of the step before

    # -- intervals

    def charge(self, phase: int, ns: int, parts: Parts | None = None) -> None:
        """Adds an interval of ``ns`` in ``phase``, whole or in parts. The caller holds the seqlock."""
        words = self.words
        if parts is None:
            words[self.slots[phase]] += ns
        else:
            rest = ns
            for cause, part in parts:
                if part < 0 and phase == _COLLECTIVE_PHASE:
                    words[self.slots[phase]] += rest
                    ns = rest  # what the exchange splits is the wait less its queue
                    break
                if part < 0 or part > rest:
                    part = rest
                words[_CAUSE_AT + cause] += part
                rest -= part
        if phase == _COLLECTIVE_PHASE:
            words[_WAITED] += ns
            if self.on_step is not None:
                self._mark = words[_CAUSE_AT:_CAUSE_END].tolist()

    def charge_cause(self, cause: int, ns: int) -> None:
        self.words[_CAUSE_AT + cause] += ns

    def take_blocked(self, meter: BlockedMeter, now_ns: int) -> None:
        words, host, compute = self.words, _CAUSE_AT + CAUSE["host"], self.slots[_COMPUTE_PHASES[0]]
        computed = words[_CAUSE_AT + CAUSE["compute"]] + words[_CAUSE_AT + CAUSE["recompute"]]
        from_host, from_compute = meter.step(now_ns, words[host], computed)
        if from_host or from_compute:
            words[host] -= from_host
            words[compute] -= from_compute
            words[_CAUSE_AT + CAUSE["host_blocked"]] += from_host + from_compute

    # -- steps

    def open_window(self, now_ns: int) -> None:
        """The first step begins: what came before is startup."""
        words = self.words
        words[_WINDOW_CAUSE_AT : _WINDOW_CAUSE_AT + len(CAUSES)] = words[_CAUSE_AT:_CAUSE_END]
        words[_WINDOW_WAITED] = self._waited = words[_WAITED]
        words[_WINDOW] = self._last_end = now_ns
        self._mark = self._before = words[_CAUSE_AT:_CAUSE_END].tolist()
        if self.splitting:
            self.slots[_COLLECTIVE_PHASE] = _PENDING
        self.charge_recompute()

    def charge_recompute(self) -> None:
        """Charges compute to `recompute` while the steps repeat what an earlier attempt had finished."""
        words = self.words
        self.repeating = words[_BASE] + words[_STEPS] < words[_UNTIL]
        slot = _CAUSE_AT + CAUSE["recompute" if self.repeating else "compute"]
        for phase in _COMPUTE_PHASES:
            self.slots[phase] = slot

    def close_step(self, end_ns: int) -> None:
        """A step boundary at ``end_ns``; everything up to it has been charged. The caller holds the seqlock."""
        words = self.words
        done = words[_STEPS]
        words[_STEPS] = done + 1
        wall = end_ns - self._last_end
        self._last_end = end_ns
        words[_STEP_NS] += wall
        words[_BUCKETS + bisect_left(_BOUNDS_NS, wall)] += 1
        waited = words[_WAITED]
        at = _RING_BYTE + done % RING_STEPS * _ENTRY_BYTES
        _ENTRY_HEAD.pack_into(self._map, at, words[_BASE] + done + 1, end_ns, wall, waited)
        self._map.move(at + _ENTRY_HEAD.size, _CAUSE_BYTE, _CAUSES_BYTES)
        if self.repeating:
            self.charge_recompute()
        if self.on_step is not None:
            wait, self._waited = waited - self._waited, waited
            before, mark = self._before, self._mark
            self._before = mark
            self.on_step(
                StepWaits(wait, tuple([_spent(mark, before, which) for which in _LATE_CAUSES]), wall, done + 1)
            )

    # -- the split of waits

    def start_splitting(self) -> None:
        """Waits of steps are held back until the exchange says how much of each was the transfer."""
        self.splitting = True
        words = self.words
        self._waited = words[_WAITED]
        self._mark = self._before = words[_CAUSE_AT:_CAUSE_END].tolist()
        if words[_WINDOW]:
            self.slots[_COLLECTIVE_PHASE] = _PENDING

    def settle(self, network_ns: int, straggler_ns: int, unsplit_ns: int = 0) -> None:
        """Moves waits out of `pending` to where they belong. The caller holds the seqlock."""
        words = self.words
        words[_PENDING] -= network_ns + straggler_ns + unsplit_ns
        words[_CAUSE_AT + CAUSE["network"]] += network_ns
        words[_CAUSE_AT + CAUSE["straggler"]] += straggler_ns
        words[_CAUSE_AT + _COLLECTIVE] += unsplit_ns

    def stop_splitting(self) -> None:
        """No split can be had any more: waits are `collective`, those held back too. The caller holds the seqlock."""
        self.splitting = False
        self.on_step = None
        self.slots[_COLLECTIVE_PHASE] = _CAUSE_AT + _COLLECTIVE
        self.settle(0, 0, self.words[_PENDING])


def _spent(now: list[int], before: list[int], which: tuple[int, ...]) -> int:
    total = 0
    for i in which:
        total += now[i] - before[i]
    return total
