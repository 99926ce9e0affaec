"""The books of one rank: charges device time to causes, closes steps, and settles waits when their split is known.

All of this is arithmetic on the ledger's words. The caller gives the length of an interval and its phase. On a CPU rank
these come from the phase machine. On an accelerator they come from the device clock: intervals are closed some time
after the host has left them, but in the same order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from mmap import mmap
from struct import Struct
from typing import TYPE_CHECKING, Protocol, cast

from ..ledger.causes import (
    CAUSE,
    CAUSES,
    FAMILY,
    LATE_FAMILIES,
    MAY_BE_OUTSIDE,
    PHASE,
    PHASE_CAUSE,
    PHASES,
    STEP_BUCKETS_SECONDS,
    WAIT_CAUSES,
    WORK_CAUSES,
)
from ..ledger.layout import (
    CALL_SLOT_SHIFT,
    CALL_WORDS,
    CALLS_AT,
    CULPRITS,
    EVALUATIONS_KEPT,
    MOST_CALL_NS,
    RING_AT,
    RING_CALLS,
    RING_STEPS,
    SLOTS,
    STEP_WORDS,
    UNKNOWN_SLOT,
    WORD_AT,
    call_head,
    call_words,
    link_word,
    other_end,
)
from .held import MARK, Blocked, Held, Wait
from .meters.aside import AsideMeter
from .snapshots import Snapshots
from .wait_codes import CONTINUES, Issues, WaitCode, slot_of

if TYPE_CHECKING:
    from .meters.blocked import BlockedMeter

Sums = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A time, what has been charged to each cause up to it, and the values of _COUNTS."""
Parts = tuple[tuple[int, int], ...]
"""A split of an interval: (cause, ns) for all causes but the last, then (cause, -1) for the rest."""
FIRST = len(CAUSES)
"""Added to a cause in parts: the wait is a first one, so the time also counts in `data_first_ns`."""


class Splitter(Protocol):
    """Splits an interval when its length is known."""

    def split(self, ns: int) -> Parts | None:
        """The parts of an interval of ``ns``; None if it is not split."""
        ...


_MOST_WAITS = 1 << 14
"""In a step with more waits, as in an evaluation without steps, the rest is not split: each takes half a kilobyte."""
_CAUSE_AT = WORD_AT["cause_ns"][0]
_COUNTS = [
    WORD_AT[word][0] for word in ("batches", "samples", "eval_batches", "eval_data_ns", "eval_idle_ns", "no_grad_ns")
]
_CAUSE_END = _CAUSE_AT + len(CAUSES)
ANY_OWN = -1
"""Instead of a phase in `Books.reclassify`: whatever the rank did itself."""
_MAY_LEAVE = [CAUSE[cause] for cause in MAY_BE_OUTSIDE if cause not in ("evaluation", "rollout")]
"""An evaluation between two trainings belongs to the first one."""
_STAYS = [CAUSE[cause] for cause in CAUSES if CAUSE[cause] not in _MAY_LEAVE and cause not in WAIT_CAUSES]
_BEFORE_CAUSES = STEP_WORDS.index(CAUSES[0]) - STEP_WORDS.index("waited_ns")
"""How many words before the causes an entry of the ring has its waits."""
_SLOT_WAITED_AT = WORD_AT["slot_waited_ns"][0]
_PENDING = WORD_AT["pending_ns"][0]
_WINDOW = WORD_AT["window_ns"][0]
_WINDOW_CAUSE_AT = WORD_AT["window_cause_ns"][0]
_WAITED = WORD_AT["waited_ns"][0]
_WINDOW_WAITED = WORD_AT["window_waited_ns"][0]
_FIRST_AT = WORD_AT["data_first_ns"][0]
_STEPS = WORD_AT["steps"][0]
_STEP_NS = WORD_AT["step_ns"][0]
_BUCKETS = WORD_AT["step_buckets"][0]
_CAUSE_BYTE, _CAUSES_BYTES = _CAUSE_AT * 8, len(CAUSES) * 8
_RING_BYTE, _ENTRY_BYTES = RING_AT * 8, len(STEP_WORDS) * 8
_ENTRY_HEAD = Struct("<5q")  # the words of STEP_WORDS before the causes
_pack_head = _ENTRY_HEAD.pack_into
_HEAD_BYTES, _HEAD_WORDS = _ENTRY_HEAD.size, _ENTRY_HEAD.size // 8
_CALL = Struct(f"<{CALL_WORDS}q")
_pack_call, _CALL_BYTES, _CALLS_BYTE = _CALL.pack_into, _CALL.size, CALLS_AT * 8
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

_HOST_AT, _BLOCKED_AT, _STARVED_AT = (_CAUSE_AT + CAUSE[of] for of in ("host", "host_blocked", "compute_queue"))
_ASIDE_AT = tuple(
    (_CAUSE_AT + CAUSE[of], WORD_AT[count][0]) for of, count in (("evaluation", "evaluations"), ("rollout", "rollouts"))
)
_ASIDE_PART = 10
"""An evaluation that is shorter than a mean one divided by this does not count: a metric of a step, for example."""
_EVALUATION_AT, _ROLLOUT_AT = (at for at, _ in _ASIDE_AT)
_EVALUATED_IDLE_AT = WORD_AT["eval_idle_ns"][0]
_EVALUATIONS_AT, _EVALUATED_AT = WORD_AT["evaluations"][0], WORD_AT["evaluated_step"][0]
_WORKS_AT = [_CAUSE_AT + CAUSE[cause] for cause in WORK_CAUSES]
_AWAKE_AT, _LOCK_AT = WORD_AT["thread_cpu_ns"][0], WORD_AT["lock_ns"][0]
_COLLECTIVE = CAUSE["collective"]
_QUEUE = CAUSE["collective_queue"]
_COMPUTE = PHASE["compute"]
_CULPRITS_KEPT = 64
_SORT_NS = 50_000_000
"""How often the waits of closed steps are sorted. Until then, a rank that is killed leaves no record of each."""


def _message_words(slot: int, ns: int, gap: int, begun: int, issues: Issues) -> list[tuple[int, int, int, int]]:
    """The arguments of `call_words` after the step, for a wait for several messages. The first one gets all of it."""
    found: list[tuple[int, int, int, int]] = []
    for one in issues:
        lead = max(0, begun - one.at) if one.at else 0
        end = other_end(one.peer, one.sent, lead, bool(found))
        found.append((slot, 0, 0, end) if found else (slot, ns, gap, end))
    return found


class Books:
    """Charges intervals to the causes of one ledger. Not thread-safe: the phase machine serializes the calls."""

    __slots__ = (
        "_aside",
        "_blocked",
        "_complete",
        "_counted_ns",
        "_culprits",
        "_holding",
        "_last_end",
        "_late_steps",
        "_links",
        "_map",
        "_moves",
        "_sort_ns",
        "_uncounted",
        "_waits",
        "asides",
        "closed",
        "held",
        "repeating",
        "slots",
        "snapshots",
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
        self._late_steps = [0] * SLOTS
        self._links: dict[int, dict[tuple[int, int], int]] = {}
        self._last_end = 0  # when the last step ended, ns of CLOCK_MONOTONIC
        self._waits: list[Wait] = []
        """The pending waits of the open step, in order."""
        self._complete = True  # whether each wait of the open step was measured
        self._blocked: Blocked | None = None  # for how long the loop was blocked in the open step, if it waited there
        self.closed: list[tuple[int, int, int, list[Wait], bool, Blocked | None]] = []
        """The closed steps that are not sorted yet: number, end and length in ns, and the fields above."""
        self._sort_ns = 0  # from when on a closed step sorts them
        self.snapshots = Snapshots(words)
        """What is kept of the sums over the whole run."""
        self._moves: list[tuple[int, int, int, int, int]] = []
        """Work that turned out to be of another phase: the arguments of `reclassify`."""
        self.asides = AsideMeter()
        self._aside = 0
        """ns of evaluations and rollouts up to the end of the last step."""
        self._counted_ns = self._uncounted = 0
        """ns of the rollouts that are counted, and the number of steps with others."""
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
            if not 0 <= part < rest:
                part = rest
            if cause >= FIRST:
                cause -= FIRST
                words[_FIRST_AT] += part
            words[_CAUSE_AT + cause] += part
            rest -= part
            if not rest:
                break

    def charge_wait(self, code: WaitCode, ns: int, queue: int = 0, end_ns: int = 0, issues: Issues = ()) -> None:
        """Adds an interval of a wait that ended at ``end_ns`` (CLOCK_MONOTONIC).

        ``queue``: for how many ns of it the rank's own threads got no CPU. ``issues``: the sends and receives that the
        rank waited for.
        """
        words = self.words
        if queue > ns:
            queue = ns
        slot = code >> 8 & 7  # slot_of(code)
        words[_WAITED] += ns
        words[_SLOT_WAITED_AT + slot] += ns
        held = self.held[slot]
        full = len(self._waits) >= _MOST_WAITS
        if full:
            self._complete = False
        if full or held is None or not words[_WINDOW]:
            words[_CAUSE_AT + _QUEUE] += queue
            words[_SLOT_QUEUE_AT + slot] += queue
            words[_CAUSE_AT + _COLLECTIVE] += ns - queue
            words[_SLOT_UNSPLIT_AT + slot] += ns - queue
            return
        words[_PENDING] += ns
        words[_SLOT_PENDING_AT + slot] += ns
        if code & CONTINUES and self._prolong(held, ns, end_ns, queue):
            return
        self._waits.append((code, end_ns - ns, ns, end_ns, queue, issues, self._map[MARK]))

    def _prolong(self, held: Held, ns: int, end_ns: int, queue: int) -> bool:
        """The last wait of a group in the open step has continued. Returns whether there is one."""
        waits, slot = self._waits, held.slot
        for index in range(len(waits) - 1, held.skipped - 1, -1):
            code, begun, before, _, queued, issues, _ = waits[index]
            if slot_of(code) == slot:
                waits[index] = code, begun, before + ns, end_ns, queued + queue, issues, self._map[MARK]
                return True
        return False

    def charge_unmeasured(self, ns: int) -> None:
        """Adds an interval in which the phase of the device is not known. It may contain waits."""
        self.words[_CAUSE_AT + CAUSE["unattributed"]] += ns
        self._complete = False

    def take_blocked(self, meter: BlockedMeter, now_ns: int) -> None:
        """Moves blocked and queued time, as the meter finds it, out of `host` and `compute`.

        Call it before a step is closed, if the meter is due or owes something.
        """
        words = self.words
        self._find_work()  # so each kind of work loses its part
        begun = meter.host_ns, meter.compute_ns = self._begun()
        hosted, computed = words[_HOST_AT], self.worked()
        base = self._begun_at() - _CAUSE_AT
        meter.aside_ns = words[_EVALUATION_AT + base] + words[_ROLLOUT_AT + base]
        from_host, from_compute, queued = meter.step(
            now_ns, hosted, computed, words[_EVALUATION_AT] + words[_ROLLOUT_AT]
        )
        words[_AWAKE_AT] = meter.awake_ns
        if meter.idle_ns is not None:
            self.asides.settle(meter.idle_ns)
            meter.idle_ns = None
        if from_host or from_compute:
            words[_HOST_AT] -= from_host
            at = self.slots[_COMPUTE]
            starved = min(queued * from_compute // (from_host + from_compute), max(words[at] - words[at + base], 0))
            words[at] -= starved
            self._take_work(from_compute - starved, self.asides.parts)
            words[_BLOCKED_AT] += from_host + from_compute - queued
            words[_STARVED_AT] += queued
            self._aside = words[_EVALUATION_AT] + words[_ROLLOUT_AT]
            if self._waits:
                compute = self.slots[_COMPUTE] - _CAUSE_AT
                self._blocked = begun, (hosted, computed), (from_host, from_compute), queued, compute
        words[_LOCK_AT] = min(meter.lock_ns, words[_BLOCKED_AT])  # a part may be owed still

    def worked(self) -> int:
        """What was charged to WORK_CAUSES up to now, ns."""
        words = self.words
        total = 0
        for at in _WORKS_AT:
            total += words[at]
        return total

    def _take_work(self, ns: int, asides: Mapping[int, float]) -> None:
        """Takes ``ns`` from what the open step has of WORK_CAUSES. ``asides``: phase -> the part of it that is of these
        evaluations or rollouts. The rest is of the training, as far as that has so much."""
        words, base = self.words, self._begun_at() - _CAUSE_AT
        left = ns
        for phase, part in (*asides.items(), (_COMPUTE, 1.0)):
            at = self.slots[phase]
            taken = max(0, min(round(ns * part), left, words[at] - words[at + base]))
            words[at] -= taken
            left -= taken
            if at == _EVALUATION_AT:
                words[_EVALUATED_IDLE_AT] += taken
        grown = [words[at] - words[at + base] for at in _WORKS_AT]
        rest = sum(grown)
        for at, part in zip(_WORKS_AT, grown, strict=True):
            if part > 0 and rest > 0:
                taken = left * part // rest
                words[at] -= taken
                left -= taken
                rest -= part

    def reclassify(self, step: int, phase: int, right: int, ns: int, idle: int = 0) -> None:
        """Work in the step after ``step`` steps turns out to be of another phase: an evaluation, for example. ``idle``:
        how long it was idle, if that was not measured for ``phase``.

        It moves when the step is closed, so that no cause loses more than it had in that step. On an accelerator that
        is later than now.
        """
        if ns > 0:
            if self._moves and self._moves[-1][:3] == (step, phase, right):
                *_, before, idle_before = self._moves.pop()
                ns, idle = ns + before, idle + idle_before
            self._moves.append((step, phase, right, ns, idle))

    def _reclassify(self, done: int) -> None:
        words, slots, base = self.words, self.slots, self._begun_at() - _CAUSE_AT
        left: tuple[int, int] | None = None
        while self._moves and self._moves[0][0] <= done:
            _, phase, right, ns, idle = self._moves.pop(0)
            if phase == ANY_OWN:
                left = right, ns
                continue
            at = slots[phase]
            grown = words[at] - words[at + base]
            moved = max(0, min(ns, grown))
            words[at] -= moved
            words[slots[right]] += moved
            if moved:
                self.asides.move(phase, right, moved / grown)
                self.asides.add(right, min(idle, moved))
        if left is not None:  # last, because evaluations stay
            self._leave_loop(*left, base)

    def _leave_loop(self, right: int, ns: int, base: int) -> None:
        """Moves what the rank did itself in the first ``ns`` of the open step to the phase ``right``, as far as that
        time was not spent in waits, saves or restores."""
        words = self.words
        grown = [words[at] - words[at + base] for at in range(_CAUSE_AT, _CAUSE_END)]
        left = ns - (words[_WAITED] - words[_CAUSE_AT + base - _BEFORE_CAUSES]) - sum(grown[at] for at in _STAYS)
        for cause in _MAY_LEAVE:
            moved = max(0, min(left, grown[cause]))
            words[_CAUSE_AT + cause] -= moved
            words[self.slots[right]] += moved
            left -= moved

    def _begun_at(self) -> int:
        """The index of the words that say what had been charged to each cause when the open step began: those of the
        last entry of the ring, or of when the window opened."""
        done = self.words[_STEPS]
        return RING_AT + (done - 1) % RING_STEPS * len(STEP_WORDS) + _HEAD_WORDS if done else _WINDOW_CAUSE_AT

    def _begun(self) -> tuple[int, int]:
        """Host and work when the open step began, ns."""
        words, base = self.words, self._begun_at() - _CAUSE_AT
        return words[_HOST_AT + base], sum([words[at + base] for at in _WORKS_AT])

    # -- steps

    def open_window(self, now_ns: int) -> None:
        """The first step begins; the time before was startup."""
        words = self.words
        words[_WINDOW_CAUSE_AT : _WINDOW_CAUSE_AT + len(CAUSES)] = words[_CAUSE_AT:_CAUSE_END]
        words[_WINDOW_WAITED] = words[_WAITED]
        words[_WINDOW] = self._last_end = now_ns
        self._aside = words[_EVALUATION_AT] + words[_ROLLOUT_AT]
        self._complete = True
        for held in self._holding:
            held.begin(self._map[MARK], self._map[MARK])
        self.charge_recompute()

    def sums(self, now_ns: int) -> Sums:
        words = self.words
        return now_ns, tuple(words[_CAUSE_AT:_CAUSE_END]), tuple([words[at] for at in _COUNTS])

    def begin_again(self, sums: Sums) -> None:
        """Moves the start of the window to an earlier time after it: a pass over the data was none of the training. Not
        after waits in collectives. The caller holds the seqlock."""
        words = self.words
        if self._holding or self._waits or words[_WAITED] != words[_WINDOW_WAITED] or sums[0] < words[_WINDOW]:
            return
        begun, causes, counts = sums
        for index, ns in enumerate(causes):
            words[_WINDOW_CAUSE_AT + index] = ns
        for at, count in zip(_COUNTS, counts, strict=True):
            words[at] -= count
        words[_WINDOW] = self._last_end = begun
        self._aside = words[_EVALUATION_AT] + words[_ROLLOUT_AT]

    def charge_recompute(self) -> None:
        """Makes compute count as `recompute` as long as steps repeat those that an earlier attempt had finished."""
        words = self.words
        self.repeating = words[_BASE] + words[_STEPS] < words[_UNTIL]
        self.slots[_COMPUTE] = _CAUSE_AT + CAUSE["recompute" if self.repeating else "compute"]

    def close_step(self, end_ns: int) -> None:
        """Closes a step at ``end_ns``. Everything up to it must have been charged. The caller holds the seqlock."""
        words = self.words
        done = words[_STEPS]
        if self._moves:
            self._reclassify(done)
        if words[_EVALUATION_AT] + words[_ROLLOUT_AT] > self._aside:
            self._count_aside()
        words[_STEPS] = done + 1
        wall = end_ns - self._last_end
        self._last_end = end_ns
        words[_STEP_NS] += wall
        words[_BUCKETS + bisect_left(_BOUNDS_NS, wall)] += 1
        at = _RING_BYTE + done % RING_STEPS * _ENTRY_BYTES
        ring = self._map
        _pack_head(ring, at, words[_BASE] + done + 1, end_ns, wall, words[_WAITED], words[_FIRST_AT])
        ring.move(at + _HEAD_BYTES, _CAUSE_BYTE, _CAUSES_BYTES)
        if self.repeating:
            self.charge_recompute()
        if end_ns >= self.snapshots.due_ns:
            self.snapshots.take(end_ns)
        if self._holding or self._waits:
            self.closed.append((done + 1, end_ns, wall, self._waits, self._complete, self._blocked))
            self._waits, self._complete, self._blocked = [], True, None
            if end_ns >= self._sort_ns:
                self._sort_ns = end_ns + _SORT_NS
                self.sort()

    def _find_work(self) -> None:
        """Sorts the work of the open step, as `close_step` does."""
        words = self.words
        if self._moves:
            self._reclassify(words[_STEPS])
        if words[_WINDOW] and words[_EVALUATION_AT] + words[_ROLLOUT_AT] > self._aside:
            self._count_aside()

    def _count_aside(self) -> None:
        """Counts the open step if it has an evaluation, or a rollout. Call it before the step is closed."""
        words, base = self.words, self._begun_at() - _CAUSE_AT
        for at, count in _ASIDE_AT:
            before = words[at + base] - words[_WINDOW_CAUSE_AT + at - _CAUSE_AT]
            grown, seen = words[at] - words[at + base], words[count]
            if at == _ROLLOUT_AT:
                self._count_rollout(grown, before, count)
            elif grown > 0 and (not seen or grown * seen > _ASIDE_PART * before):
                words[count] = 1  # the earlier ones were too short to be any
            elif grown * seen * _ASIDE_PART > before:
                words[count] += 1
            else:
                continue
            if count == _EVALUATIONS_AT:
                words[_EVALUATED_AT + (words[count] - 1) % EVALUATIONS_KEPT] = words[_STEPS]
        self._aside = words[_EVALUATION_AT] + words[_ROLLOUT_AT]

    def _count_rollout(self, grown: int, before: int, count: int) -> None:
        """In the same way, but short ones count if they have more of the time than the others."""
        words = self.words
        seen = words[count]
        if grown <= 0:
            return
        if not seen or grown * seen > _ASIDE_PART * before:
            words[count], self._counted_ns = 1, grown
            self._uncounted += seen
        elif grown * seen * _ASIDE_PART > before:
            words[count] += 1
            self._counted_ns += grown
        else:
            self._uncounted += 1
        if self._uncounted and before + grown > 2 * self._counted_ns:
            words[count] += self._uncounted
            self._counted_ns, self._uncounted = before + grown, 0

    def sort(self) -> None:
        """Passes the waits of closed steps to their groups, and puts them into the ring of calls. For many steps at
        once, because this takes a third of the time when it is repeated. The caller holds the seqlock."""
        closed, self.closed = self.closed, []
        for number, end_ns, wall, waits, complete, blocked in closed:
            if waits:
                self._keep(number, end_ns - wall, waits)
            for held in self._holding:
                slot = held.slot
                mine = [wait for wait in waits[held.skipped :] if wait[0] >> 8 & 7 == slot]  # slot_of(code)
                held.close_step(number, wall, mine, complete, blocked)

    def _keep(self, step: int, begun_ns: int, waits: Sequence[Wait]) -> None:
        """Puts the waits of a step that began at ``begun_ns`` into the ring of calls. Reports split waits from it that
        were never exchanged, and what-if uses it."""
        words, ring = self.words, self._map
        written, head, last = words[_CALLS_WRITTEN], call_head(step), begun_ns
        for code, begun, ns, end, _, issues, _ in waits:
            gap = begun - last if begun > last else 0
            if end > last:
                last = end
            if issues:
                for one in _message_words(slot_of(code), ns, gap, begun, issues):
                    _pack_call(ring, _CALLS_BYTE + written % RING_CALLS * _CALL_BYTES, *call_words(step, *one))
                    written += 1
                continue
            # `call_words` without its call
            first = head | (code >> 8 & 7) << CALL_SLOT_SHIFT | (ns if ns < MOST_CALL_NS else MOST_CALL_NS) // 1000
            _pack_call(ring, _CALLS_BYTE + written % RING_CALLS * _CALL_BYTES, first, gap // 1000, 0)
            written += 1
        words[_CALLS_WRITTEN] = written

    # -- the split of waits

    def hold(self, slot: int, outside: tuple[int, ...], *, whole: bool, pairwise: bool = False) -> int:
        """From now on, the waits of this slot are pending. Returns the first step whose waits are.

        ``whole``: the open step has not waited in this slot yet. Otherwise its waits cannot be compared.
        """
        self.sort()
        words, mark = self.words, self._map[MARK]
        held = self.held[slot] = Held(slot, outside, pairwise)
        held.complete = whole
        held.skipped = len(self._waits)
        if whole and words[_WINDOW]:  # what the rank has done since the step began may make it late in it
            at = 8 * self._begun_at()
            held.begin(self._map[at : at + _CAUSES_BYTES] + mark[_CAUSES_BYTES:], mark)
        else:
            held.begin(mark, mark)
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
        # A step in which it was late in several groups counts once.
        self._late_steps[slot] += steps
        words[_LATE_STEPS_AT] = max(self._late_steps)
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
        self.sort()
        words = self.words
        self.held[slot] = None
        self._holding = tuple([held for held in self.held if held is not None])
        self.settle(slot, {"unsplit": words[_SLOT_PENDING_AT + slot]}, words[_STEPS])

    def end(self) -> None:
        """The run ends: pending waits become `collective`. A report can still split them from the ring of calls. That
        includes the waits after the last step, as if they were in another one."""
        words = self.words
        self._find_work()
        self.sort()
        if self._waits:
            self._keep(words[_STEPS] + 1, self._last_end, self._waits)
            self._waits = []
        for slot in range(UNKNOWN_SLOT):
            if self.held[slot] is not None:
                settled = words[_SLOT_SETTLED_AT + slot]
                self.release(slot)
                words[_SLOT_SETTLED_AT + slot] = settled
