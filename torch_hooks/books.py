"""The books of one rank: charges device time to causes, closes steps, and settles waits when their split is known.

All of this is arithmetic on the ledger's words. The caller gives the length of an interval and its phase. On a CPU rank
these come from the phase machine. On an accelerator they come from the device clock: intervals are closed some time
after the host has left them, but in the same order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from mmap import mmap
from operator import itemgetter, sub
from struct import Struct
from typing import TYPE_CHECKING, Protocol, cast

from ..ledger.causes import (
    CAUSE,
    CAUSES,
    FAMILY,
    LATE_FAMILIES,
    OWN_CAUSES,
    PHASE,
    PHASE_CAUSE,
    PHASES,
    STEP_BUCKETS_SECONDS,
)
from ..ledger.layout import (
    CALL_WORDS,
    CALLS_AT,
    CULPRITS,
    RING_AT,
    RING_CALLS,
    RING_STEPS,
    SLOTS,
    STEP_WORDS,
    UNKNOWN_SLOT,
    WORD_AT,
    call_words,
    link_word,
    other_end,
)
from ..ledger.waits import Message, StepWaits
from .wait_codes import CONTINUES, PEER_SHIFT, Issues, WaitCode

if TYPE_CHECKING:
    from .meters.blocked import BlockedMeter

Parts = tuple[tuple[int, int], ...]
"""A split of an interval: (cause, ns) for all causes but the last, then (cause, -1) for the rest."""


class Splitter(Protocol):
    """Splits an interval when its length is known."""

    def split(self, ns: int) -> Parts | None:
        """The parts of an interval of ``ns``; None if it is not split."""
        ...


_CAUSE_AT = WORD_AT["cause_ns"][0]
_CAUSE_END = _CAUSE_AT + len(CAUSES)
_SLOT_WAITED_AT = WORD_AT["slot_waited_ns"][0]
_MARK_END = _SLOT_WAITED_AT + SLOTS
assert _SLOT_WAITED_AT == _CAUSE_END  # a mark is one copy of both
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
_pack_head = _ENTRY_HEAD.pack_into
_HEAD_BYTES, _HEAD_WORDS = _ENTRY_HEAD.size, _ENTRY_HEAD.size // 8
_CALL, _CALLS_BYTE = Struct(f"<{CALL_WORDS}q"), CALLS_AT * 8
_BASE = WORD_AT["base_step"][0]
_UNTIL = WORD_AT["recompute_until"][0]
_BOUNDS_NS = tuple(int(bound * 1e9) for bound in STEP_BUCKETS_SECONDS)
_SLOT_PENDING_AT = WORD_AT["slot_pending_ns"][0]
_SLOT_SETTLED_AT = WORD_AT["slot_settled"][0]
_PARTS = ("network", "straggler", "pipeline", "queue", "unsplit")
_SLOT_PART_AT = {part: WORD_AT[f"slot_{part}_ns"][0] for part in _PARTS}
_PART_CAUSE = {
    "network": "network",
    "straggler": "straggler",
    "pipeline": "pipeline",
    "queue": "collective_queue",
    "unsplit": "collective",
}
_SLOT_UNSPLIT_AT, _SLOT_QUEUE_AT = _SLOT_PART_AT["unsplit"], _SLOT_PART_AT["queue"]
_CULPRIT_AT, _CULPRIT_NS_AT = WORD_AT["culprit"][0], WORD_AT["culprit_ns"][0]
_SLOT_LATENCY_AT, _SLOT_LINK_AT = WORD_AT["slot_latency_ns"][0], WORD_AT["slot_link"][0]
_LATE_AT, _LATE_STEPS_AT = WORD_AT["late_ns"][0], WORD_AT["late_steps"][0]
_WAITED_FOR_AT = WORD_AT["waited_for_ns"][0]
_LATE_OWN_AT, _LATE_ELSEWHERE_AT = WORD_AT["late_own_ns"][0], WORD_AT["late_elsewhere_ns"][0]
_CALLS_WRITTEN = WORD_AT["calls_written"][0]

_HOST, _BLOCKED = CAUSE["host"], CAUSE["host_blocked"]
_HOST_AT, _BLOCKED_AT = _CAUSE_AT + _HOST, _CAUSE_AT + _BLOCKED
_COMPUTE_AT, _RECOMPUTE_AT = _CAUSE_AT + CAUSE["compute"], _CAUSE_AT + CAUSE["recompute"]
_COLLECTIVE = CAUSE["collective"]
_QUEUE = CAUSE["collective_queue"]
_COLLECTIVE_PHASE = PHASE["collective"]
_COMPUTE_PHASES = (PHASE["compute"], PHASE["eval"])
_CULPRITS_KEPT = 64

_NIL = len(CAUSES) + SLOTS
"""The index of a 0 behind the words of a mark. With it, `itemgetter` has two items or more, and returns a tuple."""
_OWN_CAUSES = tuple(itemgetter(*(CAUSE[cause] for cause in own), _NIL, _NIL) for own in OWN_CAUSES.values())


class Held:
    """The waits of one group that are pending until their split is known.

    A step only keeps what it needs. `steps` completes all closed ones at once, which takes a third of the time.
    """

    __slots__ = (
        "_closed",
        "_steps",
        "before",
        "calls",
        "complete",
        "mark",
        "messages",
        "outside",
        "pairwise",
        "peers",
        "queues",
        "size",
        "slot",
        "traced",
    )

    def __init__(self, slot: int, outside: tuple[int, ...], mark: list[int], pairwise: bool):
        self.slot = slot
        self.pairwise = pairwise
        self.messages: list[Message] = []
        self.outside = outside
        """Slots in which waits may make the rank late for this group."""
        self.calls: list[int] = []  # waits of the open step, ns
        self.queues: list[int] = []  # for each wait, how long this rank's own threads got no CPU, ns
        self.peers: list[int] = []  # for each wait, the peer; only in groups whose ranks send to each other
        self.complete = True  # whether each wait of the open step was measured
        # The words of causes and slots at the end of the last wait, and at the end of the last wait of earlier steps.
        self.mark = self.before = mark
        self._steps: deque[StepWaits] = deque()
        self._closed: list[tuple[int, int, list[int], tuple[int, ...], list[int], list[Message], bool, list[int]]] = []
        """Later steps: like StepWaits, but with what each word of the marks has grown by, or nothing."""
        self.traced = 0
        """The index of the last wait among all waits of the open step."""
        self.size = 0
        """The memory that the completed steps take, as a count of numbers, so that it can be limited."""

    @property
    def steps(self) -> deque[StepWaits]:
        """The closed steps. The caller may remove those from the start."""
        for number, wall, calls, spent, peers, messages, complete, queues in self._closed:
            own, elsewhere = _NO_OWN, _NOWHERE
            if spent:
                own = tuple([max(0, sum(causes(spent))) for causes in _OWN_CAUSES])
                elsewhere = tuple([spent[len(CAUSES) + slot] if slot in self.outside else 0 for slot in range(SLOTS)])
            step = StepWaits(number, wall, calls, own, elsewhere, peers, messages, complete, queues)
            self._steps.append(step)
            self.size += step.size
        self._closed.clear()
        return self._steps

    @property
    def count(self) -> int:
        """The number of closed steps."""
        return len(self._steps) + len(self._closed)

    def was_blocked(
        self, begun: tuple[int, int], ended: tuple[int, int], blocked: tuple[int, int], compute: int
    ) -> None:
        """The loop was ``blocked`` for a part of the open step. Corrects the mark, which has it as host and compute.

        All are (host, compute) in ns. It is not known when in the step it was. So of both, the part before the mark is
        that of all time in the phase. ``compute``: the cause to which compute is charged.
        """
        mark = self.mark
        marked = mark[_HOST], mark[CAUSE["compute"]] + mark[CAUSE["recompute"]]
        from_host, from_compute = (
            part * (at - start) // (end - start) if part else 0
            for part, at, start, end in zip(blocked, marked, begun, ended, strict=True)
        )
        mark[_HOST] -= from_host
        mark[compute] -= from_compute
        mark[_BLOCKED] += from_host + from_compute

    def close_step(self, number: int, wall: int) -> None:
        before, mark = self.before, self.mark
        self.before = mark
        calls, self.calls = self.calls, []
        peers, self.peers = self.peers, []
        queues, self.queues = self.queues, []
        messages, self.messages = self.messages, []
        # The difference of two marks may be negative: blocked time moves out of `compute` at the end of a step, and how
        # much of it was before the mark is an estimate.
        spent = () if mark is before else (*map(sub, mark, before), 0)
        self._closed.append((number, wall, calls, spent, peers, messages, self.complete, queues))
        self.complete = True


_NO_OWN: Sequence[int] = (0,) * len(LATE_FAMILIES)
_NOWHERE: Sequence[int] = (0,) * SLOTS


_Traced = tuple[int, int, int, int]
"""A wait of the open step: the arguments of `call_words` after the step."""


def _messages(slot: int, ns: int, gap: int, begun: int, issues: Issues) -> list[_Traced]:
    """A single wait for several messages. The first message gets all of its time."""
    found = []
    for one in issues:
        lead = max(0, begun - one.at) if one.at else 0
        end = other_end(one.peer, one.sent, lead, bool(found))
        found.append((slot, 0, 0, end) if found else (slot, ns, gap, end))
    return found


class Books:
    """Charges intervals to the causes of one ledger. Not thread-safe: the phase machine serializes the calls."""

    __slots__ = (
        "_culprits",
        "_holding",
        "_last_end",
        "_last_wait",
        "_links",
        "_map",
        "_trace",
        "held",
        "repeating",
        "slots",
        "words",
    )

    def __init__(self, words: memoryview):
        self.words = words
        self._map = cast(mmap, words.obj)  # its move() copies without making an object
        self.repeating = False
        self.slots = [_CAUSE_AT + CAUSE[PHASE_CAUSE[phase]] for phase in PHASES]
        """Phase -> index of the word to which its intervals are added."""
        self.held: list[Held | None] = [None] * SLOTS
        """Per slot, its pending waits. None: waits in this slot count as `collective` at once."""
        self._holding: tuple[Held, ...] = ()
        """Those of ``held`` that are not None."""
        self._culprits: dict[int, dict[int, int]] = {}
        self._links: dict[int, dict[tuple[int, int], int]] = {}
        # The ends of the last step and of the last pending wait, ns of CLOCK_MONOTONIC.
        self._last_end = self._last_wait = 0
        self._trace: list[_Traced] = []
        """The pending waits of the open step, in order."""
        for slot in range(SLOTS):
            words[_SLOT_SETTLED_AT + slot] = -1

    # -- intervals

    def charge(self, phase: int, ns: int, parts: Parts | None = None) -> None:
        """Adds an interval of ``ns`` in ``phase``, whole or in parts. The caller holds the seqlock."""
        words = self.words
        if parts is None:
            words[self.slots[phase]] += ns
            return
        rest = ns
        for cause, part in parts:
            if 0 <= part < rest:
                words[_CAUSE_AT + cause] += part
                rest -= part
            else:
                words[_CAUSE_AT + cause] += rest
                break

    def charge_wait(
        self, code: WaitCode, ns: int, parts: Parts | None = None, end_ns: int = 0, issues: Issues = ()
    ) -> None:
        """Adds an interval of a wait that ended at ``end_ns`` (CLOCK_MONOTONIC).

        The first of ``parts`` is the time in which the rank's own threads got no CPU. ``issues``: the sends and
        receives that the rank waited for.
        """
        words = self.words
        queue = 0
        if parts is not None:
            queue = parts[0][1]
            if queue > ns:
                queue = ns
        slot = code >> 8 & 7  # slot_of(code)
        words[_WAITED] += ns
        words[_SLOT_WAITED_AT + slot] += ns
        held = self.held[slot]
        if held is None or not words[_WINDOW]:
            words[_CAUSE_AT + _QUEUE] += queue
            words[_SLOT_QUEUE_AT + slot] += queue
            words[_CAUSE_AT + _COLLECTIVE] += ns - queue
            words[_SLOT_UNSPLIT_AT + slot] += ns - queue
            return
        words[_PENDING] += ns
        words[_SLOT_PENDING_AT + slot] += ns
        if code & CONTINUES and held.calls:
            held.calls[-1] += ns
            held.queues[-1] += queue
            before = self._trace[held.traced]
            self._trace[held.traced] = (slot, before[1] + ns, before[2], before[3])
            if held.messages and issues:
                held.messages[-len(issues) :] = [
                    one._replace(end=end_ns, ns=one.ns + ns, queue=one.queue + queue)
                    for one in held.messages[-len(issues) :]
                ]
        else:
            held.calls.append(ns)
            held.queues.append(queue)
            held.peers.append((code >> PEER_SHIFT) - 1)  # peer_of(code)
            if held.pairwise:
                held.messages += [Message(one.peer, one.sent, one.at, end_ns, ns, queue) for one in issues]
                held.complete &= all(one.at for one in issues)
            held.traced = len(self._trace)
            last = self._last_wait if self._last_wait > self._last_end else self._last_end
            gap = end_ns - ns - last if end_ns - ns > last else 0
            if issues:
                self._trace += _messages(slot, ns, gap, end_ns - ns, issues)
            else:
                self._trace.append((slot, ns, gap, 0))
        self._last_wait = end_ns
        held.mark = words[_CAUSE_AT:_MARK_END].tolist()

    def charge_unmeasured(self, ns: int) -> None:
        """Adds an interval in which the phase of the device is not known. It may contain waits."""
        self.words[_CAUSE_AT + CAUSE["unattributed"]] += ns
        for held in self._holding:
            held.complete = False

    def take_blocked(self, meter: BlockedMeter, now_ns: int) -> None:
        """Moves blocked time, as the meter finds it, out of `host` and `compute`.

        Call it before a step is closed, if the meter is due or owes something.
        """
        words, compute = self.words, self.slots[_COMPUTE_PHASES[0]]
        begun = meter.host_ns, meter.compute_ns = self._begun()
        hosted, computed = words[_HOST_AT], words[_COMPUTE_AT] + words[_RECOMPUTE_AT]
        from_host, from_compute = meter.step(now_ns, hosted, computed)
        if from_host or from_compute:
            words[_HOST_AT] -= from_host
            words[compute] -= from_compute
            words[_BLOCKED_AT] += from_host + from_compute
            for held in self._holding:
                if held.mark is not held.before:
                    held.was_blocked(begun, (hosted, computed), (from_host, from_compute), compute - _CAUSE_AT)

    def _begun(self) -> tuple[int, int]:
        """Host and compute when the open step began, ns: as they are in the ring, or when the window opened."""
        words = self.words
        done = words[_STEPS]
        at = RING_AT + (done - 1) % RING_STEPS * len(STEP_WORDS) + _HEAD_WORDS if done else _WINDOW_CAUSE_AT
        at -= _CAUSE_AT
        return words[_HOST_AT + at], words[_COMPUTE_AT + at] + words[_RECOMPUTE_AT + at]

    # -- steps

    def open_window(self, now_ns: int) -> None:
        """The first step begins; the time before was startup."""
        words = self.words
        words[_WINDOW_CAUSE_AT : _WINDOW_CAUSE_AT + len(CAUSES)] = words[_CAUSE_AT:_CAUSE_END]
        words[_WINDOW_WAITED] = words[_WAITED]
        words[_WINDOW] = self._last_end = now_ns
        for held in self._holding:
            held.mark = held.before = self.mark()
        self.charge_recompute()

    def charge_recompute(self) -> None:
        """Makes compute count as `recompute` as long as steps repeat those that an earlier attempt had finished."""
        words = self.words
        self.repeating = words[_BASE] + words[_STEPS] < words[_UNTIL]
        slot = _CAUSE_AT + CAUSE["recompute" if self.repeating else "compute"]
        for phase in _COMPUTE_PHASES:
            self.slots[phase] = slot

    def close_step(self, end_ns: int) -> None:
        """Closes a step at ``end_ns``. Everything up to it must have been charged. The caller holds the seqlock."""
        words = self.words
        done = words[_STEPS]
        words[_STEPS] = done + 1
        wall = end_ns - self._last_end
        self._last_end = end_ns
        words[_STEP_NS] += wall
        words[_BUCKETS + bisect_left(_BOUNDS_NS, wall)] += 1
        at = _RING_BYTE + done % RING_STEPS * _ENTRY_BYTES
        ring = self._map
        _pack_head(ring, at, words[_BASE] + done + 1, end_ns, wall, words[_WAITED])
        ring.move(at + _HEAD_BYTES, _CAUSE_BYTE, _CAUSES_BYTES)
        if self.repeating:
            self.charge_recompute()
        if self._trace:
            self._keep(done + 1)
        for held in self._holding:
            held.close_step(done + 1, wall)

    def _keep(self, step: int) -> None:
        """Puts the waits of a step into the ring of calls. Reports split waits from it that were never exchanged, and
        what-if uses it."""
        written, ring, pack_into = self.words[_CALLS_WRITTEN], self._map, _CALL.pack_into
        for slot, ns, gap, end in self._trace:
            pack_into(ring, _CALLS_BYTE + written % RING_CALLS * _CALL.size, *call_words(step, slot, ns, gap, end))
            written += 1
        self.words[_CALLS_WRITTEN] = written
        self._trace.clear()

    # -- the split of waits

    def mark(self) -> list[int]:
        return self.words[_CAUSE_AT:_MARK_END].tolist()

    def hold(self, slot: int, outside: tuple[int, ...], *, whole: bool, pairwise: bool = False) -> int:
        """From now on, the waits of this slot are pending. Returns the first step whose waits are.

        ``whole``: the open step has not waited in this slot yet. Otherwise its waits cannot be compared.
        """
        words = self.words
        held = self.held[slot] = Held(slot, outside, self.mark(), pairwise)
        held.complete = whole
        self._holding = tuple([held for held in self.held if held is not None])
        words[_SLOT_SETTLED_AT + slot] = words[_STEPS]
        return words[_STEPS] + 1

    def settle(self, slot: int, parts: Mapping[str, int], through: int) -> None:
        """Moves waits of a slot from `pending` to their causes. The caller holds the seqlock.

        ``parts``: ns of network, straggler, pipeline, queue and unsplit. ``through``: the last step of these waits.
        """
        words = self.words
        for part, ns in parts.items():
            words[_PENDING] -= ns
            words[_SLOT_PENDING_AT + slot] -= ns
            words[_CAUSE_AT + CAUSE[_PART_CAUSE[part]]] += ns
            words[_SLOT_PART_AT[part] + slot] += ns
        words[_SLOT_SETTLED_AT + slot] = through

    def blame(self, slot: int, behind: Mapping[int, int]) -> None:
        """Adds waits for late ranks: rank -> ns."""
        known = self._culprits.setdefault(slot, {})
        for rank, ns in behind.items():
            known[rank] = known.get(rank, 0) + ns
        worst = sorted(known.items(), key=lambda entry: -entry[1])
        if len(worst) > _CULPRITS_KEPT:
            self._culprits[slot] = dict(worst[: _CULPRITS_KEPT // 2])
        words, at = self.words, slot * CULPRITS
        for place, (rank, ns) in enumerate(worst[:CULPRITS]):
            words[_CULPRIT_AT + at + place] = rank + 1
            words[_CULPRIT_NS_AT + at + place] = ns

    def latency(self, slot: int, link: tuple[int, int], ns: int) -> None:
        """Adds ``ns`` of waits for other stages that the transfers of a link have caused."""
        words, known = self.words, self._links.setdefault(slot, {})
        known[link] = known.get(link, 0) + ns  # a pipeline has no more links than stages
        words[_SLOT_LATENCY_AT + slot] += ns
        words[_SLOT_LINK_AT + slot] = link_word(max(known, key=known.__getitem__))

    def late(self, slot: int, own: Iterable[int], elsewhere: Iterable[int], steps: int) -> None:
        """Adds by how much this rank was late in a slot: ns per LATE_FAMILIES of its own time, and per other slot."""
        words = self.words
        words[_LATE_STEPS_AT] += steps
        for index, ns in enumerate(own):
            words[_LATE_OWN_AT + slot * len(LATE_FAMILIES) + index] += ns
            words[_LATE_AT + FAMILY[LATE_FAMILIES[index]]] += ns
        for index, ns in enumerate(elsewhere):
            words[_LATE_ELSEWHERE_AT + slot * SLOTS + index] += ns

    def charge_waited_for(self, charged: Sequence[int]) -> None:
        """Adds waits for late ranks and other stages: ns per FAMILIES, by what made those late."""
        words = self.words
        for index, ns in enumerate(charged):
            words[_WAITED_FOR_AT + index] += ns

    def release(self, slot: int) -> None:
        """Waits of this slot are not split any more: they are `collective`, also those that are pending."""
        words = self.words
        self.held[slot] = None
        self._holding = tuple([held for held in self.held if held is not None])
        self.settle(slot, {"unsplit": words[_SLOT_PENDING_AT + slot]}, words[_STEPS])

    def end(self) -> None:
        """The run ends: pending waits become `collective`. A report can still split them from the ring of calls. That
        includes the waits after the last step, as if they were in another one."""
        words = self.words
        if self._trace:
            self._keep(words[_STEPS] + 1)
        for slot in range(UNKNOWN_SLOT):
            if self.held[slot] is not None:
                settled = words[_SLOT_SETTLED_AT + slot]
                self.release(slot)
                words[_SLOT_SETTLED_AT + slot] = settled
