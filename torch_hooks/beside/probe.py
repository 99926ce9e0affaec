"""The probe `background`: in most rounds of the watcher, which steps were made, and what worked beside them.

It reads what the training thread has recorded anyway: the last entry of the ring of steps. So a step costs nothing.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...ledger.background import BACKGROUND_LABELS, PARTS, SUMS, UNIT
from ...ledger.beside import Block, Comparisons
from ...ledger.causes import CAUSE_FAMILY, CAUSES, WAIT_CAUSES
from ...ledger.layout import RING_AT, RING_STEPS, SEQUENCE, STEP_WORDS, STRING_AT, WORD_AT
from ..tasks import open_schedstat, read_schedstat
from .node import Disks, Links, Neighbours
from .own import Behind, Processes, Shares, Threads

if TYPE_CHECKING:
    from ..machine import PhaseMachine

_now = time.monotonic_ns
PERIOD_SECONDS = 0.6
_OPEN = 0.25
"""The step that is not over at a look has at most this part of the time since the last block. Otherwise the block goes
on: it is not known how much of the work since the last look was beside that step."""
_SOON_SECONDS = 0.8
"""While something works, and once after that, there is a look after this time. So it is known better when that ends."""
_NOT_COMPARED = frozenset(
    {
        *("checkpoint_write", "checkpoint_cpu", "checkpoint_read", "host_compile", "data_start", "startup"),
        *("evaluation", "rollout", "suspended", "shutdown", "between", "interactive"),
    }
)
"""Causes of what is not a part of a usual step."""
_PART_OF_CAUSE = {
    "data_read": "storage",
    "data_cpu": "data",
    "data_queue": "data",
    "data_handoff": "data",
    "compute_queue": "compute",  # `queue` is what the kernel says, and is taken from `compute`
}
_COMPUTE_FAMILIES = ("compute", "lost")
_HOST, _COMPUTE = PARTS.index("host"), PARTS.index("compute")
_SPLIT = 8
"""The most saves between two looks that are set apart: a save may be a file for each tensor."""
_MARGIN = 64
"""The oldest entries of the ring are not read: the training may overwrite them meanwhile."""
_ENTRY = Struct(f"<{len(STEP_WORDS)}q")
_RING_BYTE = RING_AT * 8
_CAUSES_FROM = STEP_WORDS.index(CAUSES[0])
_WAITED, _END = STEP_WORDS.index("waited_ns"), STEP_WORDS.index("end_ns")
_STEPS_AT, _WINDOW_AT, _LOCK_AT = (WORD_AT[name][0] for name in ("steps", "window_ns", "lock_ns"))
_STEP_AT, _STRETCHES_AT, _WORKED_AT, _MOST_AT, _SUMS_AT = (
    WORD_AT[f"background_{name}"][0] for name in ("step_ns", "stretches", "worked_ns", "most", "sums")
)


def enabled() -> bool:
    return os.environ.get("WHYIDLE_BACKGROUND") != "0"


def _part_of(cause: str) -> str | None:
    if cause in WAIT_CAUSES or cause in _NOT_COMPARED:
        return None  # waits are in `waited_ns`
    return _PART_OF_CAUSE.get(cause) or ("compute" if CAUSE_FAMILY[cause] in _COMPUTE_FAMILIES else "host")


_CAUSES_OF = {part: [_CAUSES_FROM + at for at, cause in enumerate(CAUSES) if _part_of(cause) == part] for part in PARTS}


class _Mark(NamedTuple):
    """The end of a step. All are cumulative."""

    steps: int
    end_ns: int
    parts: tuple[int, ...]
    """ns by PARTS, without what the next two are a part of."""
    lock_ns: int = 0
    queue_ns: int = 0


class Source(Protocol):
    def works(self, now_ns: int) -> Shares:
        """Label of a work -> the share of the time since the last call in which it worked."""
        ...


class BackgroundLooks:
    """Only the watcher's thread calls it, but for ``close``."""

    def __init__(
        self,
        machine: PhaseMachine,
        behind: Behind,
        workers: Callable[[], Collection[int]],
        directory: str,
        moved: Callable[[], dict[str, int]],
    ):
        """The training thread must call this. ``workers``: the pids of its data workers. ``directory``: of ledgers.
        ``moved``: interface -> bytes that the rank's own communication has moved."""
        self._machine = machine
        self._words = words = machine.words
        self._looking = threading.Lock()
        self._comparisons = Comparisons(len(BACKGROUND_LABELS))
        self._before: _Mark | None = None
        self._behind = behind
        self._look_ns = 0
        self._working = False
        self._worked: dict[str, float] = {}  # ns in which each worked from the last step of `_before` to the last look
        self._task = open_schedstat(os.getpid(), threading.get_native_id())
        processes = Processes(workers)
        self._sources: list[Source] = [
            behind,
            Threads(threading.get_native_id()),
            processes,
            Neighbours(directory, processes.own),
            Disks(words, self._string),
            Links(moved),
        ]

    def __del__(self) -> None:
        if self._task >= 0:
            os.close(self._task)

    def soon(self) -> float:
        """For `watcher.Probe`: seconds; 0 if the next round is soon enough."""
        return _SOON_SECONDS if self._working else 0.0

    def look(self) -> None:
        words = self._words
        if words[_WINDOW_AT] and self._looking.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._looking.release()

    def close(self) -> None:
        """A last look. The watcher has been stopped, but may still be in one. Never raises."""
        if self._looking.acquire(blocking=False):  # for good: there is no other look
            with suppress(Exception):  # the fence around the training
                if self._words[_WINDOW_AT]:
                    self._look()
                self._comparisons.end()
                self._write()

    def _look(self) -> None:
        now, before = self._read(), self._before
        if now is None:
            return
        moment, works = _now(), {}
        for source in self._sources:
            works |= source.works(moment)
        passed, self._look_ns = moment - self._look_ns, moment
        self._working = self._comparisons.works(works)
        if before is None:
            self._before = now
            return
        ended = now.steps != before.steps and moment - now.end_ns <= _OPEN * (moment - before.end_ns)
        # of the time since the last look, what was before the end of the last step
        inside = min(1.0, max(0.0, 1 - (moment - now.end_ns) / max(passed, 1))) if ended else 1.0
        grown = {label: share * passed for label, share in works.items()}
        worked = {
            label: self._worked.get(label, 0.0) + inside * grown.get(label, 0.0) for label in {*self._worked, *grown}
        }
        if not ended:
            self._worked = worked
            return
        self._before, self._worked = now, {label: (1 - inside) * ns for label, ns in grown.items()}
        for block in self._blocks(before, now, worked):
            self._comparisons.add(block)
        self._write()

    def _blocks(self, before: _Mark, now: _Mark, worked: dict[str, float]) -> Iterator[Block]:
        """The steps between two looks, apart where a save has begun or ended: that is known exactly. Such blocks say
        something about saves only.

        ``worked``: label of a work -> ns between the two.
        """
        whole, label = max(1, now.end_ns - before.end_ns), self._behind.label
        saves = self._behind.stretches(before.end_ns, now.end_ns)
        marks = [before, *self._between(before, now, sorted({*sum(saves, ())})), now] if len(saves) <= _SPLIT else []
        if len(marks) <= 2:
            yield _block(before, now, {each: min(1.0, spent / whole) for each, spent in worked.items()})
        for old, new in pairwise(marks if len(marks) > 2 else ()):
            ns = new.end_ns - old.end_ns
            saving = sum(max(0, min(end, new.end_ns) - max(begin, old.end_ns)) for begin, end in saves)
            yield _block(old, new, {label: min(1.0, saving / ns)})._replace(only=label)

    def _between(self, before: _Mark, now: _Mark, edges: list[int]) -> Iterator[_Mark]:
        """The ends of the steps in which these times are."""
        first = max(before.steps, now.steps - RING_STEPS + _MARGIN) + 1
        last, whole = 0, now.end_ns - before.end_ns
        for edge in edges:
            step = bisect_left(range(first, now.steps), edge, key=lambda step: self._entry(step)[_END]) + first
            if step > last and step < now.steps and before.end_ns < edge:
                last, mark = step, self._mark(step)
                if before.end_ns < mark.end_ns < now.end_ns:
                    part = (mark.end_ns - before.end_ns) / whole
                    # They are a part of these.
                    lock, queue = (_grown(before, mark, now, at, part) for at in (_HOST, _COMPUTE))
                    yield mark._replace(
                        lock_ns=before.lock_ns + round(lock * (now.lock_ns - before.lock_ns)),
                        queue_ns=before.queue_ns + round(queue * (now.queue_ns - before.queue_ns)),
                    )

    def _entry(self, step: int) -> tuple[int, ...]:
        return _ENTRY.unpack_from(self._words.obj, _RING_BYTE + (step - 1) % RING_STEPS * _ENTRY.size)  # type: ignore[arg-type]

    def _mark(self, step: int) -> _Mark:
        entry = self._entry(step)
        spent = {part: sum([entry[at] for at in causes]) for part, causes in _CAUSES_OF.items()}
        spent["waits"] += entry[_WAITED]
        return _Mark(step, entry[_END], tuple(spent[part] for part in PARTS))

    def _read(self) -> _Mark | None:
        """None before the first step has ended, and during an update."""
        words = self._words
        sequence, steps = words[SEQUENCE], words[_STEPS_AT]
        if not steps:
            return None
        mark = self._mark(steps)
        if sequence & 1 or words[SEQUENCE] != sequence:
            return None
        queue = 0
        with suppress(OSError, ValueError, IndexError):  # this kernel does not tell
            queue = read_schedstat(self._task)[1]
        return mark._replace(lock_ns=words[_LOCK_AT], queue_ns=queue)

    # -- the ledger

    def _string(self, name: str) -> str:
        at, size = STRING_AT[name]
        return bytes(self._words.obj[at : at + size]).split(b"\0", 1)[0].decode("utf-8", "replace")  # type: ignore[index]

    def _write(self) -> None:
        words, found = self._words, self._comparisons
        words[_STEP_AT] = found.step_ns
        for index, (label, slope) in enumerate(found.slopes.items()):
            if not words[_STRETCHES_AT + index]:
                name = BACKGROUND_LABELS[index]
                self._machine.write_string(name, label[: STRING_AT[name][1] // 2])
            words[_STRETCHES_AT + index], words[_WORKED_AT + index] = slope.stretches, round(slope.worked_ns)
            words[_MOST_AT + index] = round(UNIT * slope.most)
            for at, value in enumerate(slope.sums, _SUMS_AT + index * len(SUMS)):
                words[at] = round(UNIT * value)


def _grown(before: _Mark, mark: _Mark, now: _Mark, at: int, part: float) -> float:
    """How much of the growth of a part of the steps' time there was up to a mark; ``part``: if it has not grown."""
    grown = now.parts[at] - before.parts[at]
    return min(1.0, max(0.0, (mark.parts[at] - before.parts[at]) / grown)) if grown > 0 else part


def _block(old: _Mark, new: _Mark, works: Shares) -> Block:
    spent = {part: one - other for part, one, other in zip(PARTS, new.parts, old.parts, strict=True)}
    lock, queue = new.lock_ns - old.lock_ns, new.queue_ns - old.queue_ns
    spent["lock"] += lock
    spent["host"] -= lock
    spent["queue"] += queue
    spent["compute"] -= queue
    return Block(new.steps - old.steps, new.end_ns - old.end_ns, tuple(spent.values()), works)
