"""The probe `background`: twice a second, which steps were made, and what worked beside them.

It reads what the training thread has recorded anyway: the last entry of the ring of steps. So a step costs nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from ...ledger.background import BACKGROUND_LABELS, LAST, PARTS
from ...ledger.beside import Block, Pairings, Stretch
from ...ledger.causes import CAUSE_FAMILY, CAUSES, WAIT_CAUSES
from ...ledger.layout import RING_AT, RING_STEPS, SEQUENCE, STEP_WORDS, STRING_AT, WORD_AT
from ..tasks import open_schedstat, read_schedstat
from .node import Disks, Links, Neighbours
from .own import Behind, Processes, Shares, Threads

if TYPE_CHECKING:
    from ..machine import PhaseMachine

PERIOD_SECONDS = 1.0
STOP_SECONDS = 0.1
_NOT_COMPARED = frozenset(
    {
        *("checkpoint_write", "checkpoint_cpu", "checkpoint_read", "host_compile", "data_start", "startup"),
        *("evaluation", "rollout", "suspended", "shutdown", "between", "interactive"),
    }
)
"""Causes of what is not a part of a usual step."""
_PART_OF_CAUSE = {"data_read": "storage", "data_cpu": "data", "data_queue": "data", "data_handoff": "data"}
_COMPUTE_FAMILIES = ("compute", "lost")
_ENTRY = Struct(f"<{len(STEP_WORDS)}q")
_RING_BYTE = RING_AT * 8
_CAUSES_FROM = STEP_WORDS.index(CAUSES[0])
_WAITED, _END = STEP_WORDS.index("waited_ns"), STEP_WORDS.index("end_ns")
_STEPS_AT, _WINDOW_AT, _LOCK_AT = (WORD_AT[name][0] for name in ("steps", "window_ns", "lock_ns"))
_STRETCHES_AT, _COUNT_AT, _COMPARED_AT, _COMPARED_STEPS_AT, _NORMAL_AT, _PART_AT = (
    WORD_AT[f"background_{name}"][0]
    for name in ("stretches", "steps", "compared", "compared_steps", "normal_ns", "part_ns")
)
_LAST_STEPS_AT, _LAST_EXCESS_AT, _LAST_DRIFT_AT = (
    WORD_AT[f"background_last_{name}"][0] for name in ("steps", "excess_ns", "drift_ns")
)


def enabled() -> bool:
    return os.environ.get("WHYIDLE_BACKGROUND") != "0"


def _part_of(cause: str) -> str | None:
    if cause in WAIT_CAUSES or cause in _NOT_COMPARED:
        return None  # waits are in `waited_ns`
    return _PART_OF_CAUSE.get(cause) or ("compute" if CAUSE_FAMILY[cause] in _COMPUTE_FAMILIES else "host")


_CAUSES_OF = {part: [_CAUSES_FROM + at for at, cause in enumerate(CAUSES) if _part_of(cause) == part] for part in PARTS}


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
        self._pairing = Pairings()
        self._labels: dict[str, int] = {}
        self._before: tuple[int, ...] | None = None
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

    def look(self) -> None:
        with self._looking:
            words = self._words
            if words[_WINDOW_AT] and not words[SEQUENCE] & 1:
                self._look()

    def close(self) -> None:
        """Ends the open stretch. The watcher has been stopped, but may still be in a look. Never raises."""
        if not self._looking.acquire(timeout=STOP_SECONDS):
            return
        try:
            for stretch in self._pairing.finish():
                self._write(stretch)
        except Exception:  # the fence around the training
            pass
        finally:
            self._looking.release()

    def _look(self) -> None:
        now = self._read()
        before = self._before
        if now is None or (before is not None and now[0] == before[0]):
            return  # no step has ended
        works: Shares = {}
        moment = time.monotonic_ns()
        for source in self._sources:
            works |= source.works(moment)
        self._before = now
        if before is None:
            return
        steps, ns, *parts = (one - other for one, other in zip(now, before, strict=True))
        for stretch in self._pairing.add(Block(steps, ns, tuple(parts), works)):
            self._write(stretch)

    def _read(self) -> tuple[int, ...] | None:
        """Steps, ns, and ns by PARTS, all cumulative; None before the first step has ended."""
        words = self._words
        steps = words[_STEPS_AT]
        if not steps:
            return None
        entry = _ENTRY.unpack_from(words.obj, _RING_BYTE + (steps - 1) % RING_STEPS * _ENTRY.size)  # type: ignore[arg-type]
        spent = {part: sum([entry[at] for at in causes]) for part, causes in _CAUSES_OF.items()}
        spent["waits"] += entry[_WAITED]
        lock = words[_LOCK_AT]
        spent["lock"] += lock
        spent["host"] -= lock
        queue = 0
        with suppress(OSError, ValueError, IndexError):  # this kernel does not tell
            queue = read_schedstat(self._task)[1]
        spent["queue"] += queue
        spent["compute"] -= queue
        return steps, entry[_END], *(spent[part] for part in PARTS)

    # -- the ledger

    def _string(self, name: str) -> str:
        at, size = STRING_AT[name]
        return bytes(self._words.obj[at : at + size]).split(b"\0", 1)[0].decode("utf-8", "replace")  # type: ignore[index]

    def _index_of(self, label: str) -> int | None:
        index = self._labels.get(label)
        if index is None and len(self._labels) < len(BACKGROUND_LABELS):
            index = self._labels[label] = len(self._labels)
            name = BACKGROUND_LABELS[index]
            self._machine.write_string(name, label[: STRING_AT[name][1] // 2])
        return index

    def _write(self, stretch: Stretch) -> None:
        index = self._index_of(stretch.label)
        if index is None:
            return
        words, steps = self._words, max(1, round(1000 * stretch.steps))
        words[_STRETCHES_AT + index] += 1
        words[_COUNT_AT + index] += steps
        if stretch.excess_ns is None:
            return
        last = index * LAST + words[_COMPARED_AT + index] % LAST
        words[_COMPARED_STEPS_AT + index] += steps
        words[_NORMAL_AT + index] += round(stretch.normal_ns)
        for at, ns in enumerate(stretch.excess_ns):
            words[_PART_AT + index * len(PARTS) + at] += round(ns)
        words[_LAST_STEPS_AT + last] = steps
        words[_LAST_EXCESS_AT + last] = round(1000 * sum(stretch.excess_ns) / steps)
        words[_LAST_DRIFT_AT + last] = round(stretch.drift_ns)
        words[_COMPARED_AT + index] += 1
