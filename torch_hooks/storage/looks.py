"""Looks at random times at who reads or writes for the loop while the loop waits for it, and counts it by mount.

Three kinds of waits are looked at: for a batch, in a save or a restore, and blocked in code that no hook sees. The
books know how long the loop has waited in each way. The looks say where: what the books have gained since the last look
is divided among what the looks have found since then.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ...ledger.causes import CAUSE, PHASE
from ...ledger.doing import polled_pipes
from ...ledger.layout import WORD_AT
from ...linux import syscalls
from .. import proc
from ..below import DATA, SAVING
from ..interpreter import is_of_interpreter
from ..meters.source import children
from ..threads import OURS, thread_clock
from .mounts import Mounts
from .rates import AT, Rate
from .readers import Finder, Reader, Seen, moved_by

if TYPE_CHECKING:
    from ..frames import Frames
    from ..loaders import Loaders
    from ..machine import PhaseMachine

_MOST_READERS = 4
"""The most tasks that a look takes in."""
_KEPT = 64
"""The most tasks whose descriptors are kept open."""
_THREADS_AGAIN_NS = 2_000_000_000
_SHELLS = 3
"""The most programs that run one another, and wait."""
_MOST_LISTED = 32
"""The most threads of a process of which it is asked how much they have read: the newest ones."""
_LATE_NS = 2_000_000
"""A look that is later than this may have waited for Python's lock."""
_LONG_NS = 1_000_000_000
_MOST_BETWEEN_NS = 8_000_000_000
"""What a look may stand for: the longest time between two rounds of the watcher, if it has got a CPU."""
_DATA, _SAVE, _OWN = range(3)
_NS_AT = [AT["data_ns"], AT["save_ns"], AT["own_ns"]]
_CAUSES = [["data_read"], ["checkpoint_write", "checkpoint_read"], ["host_blocked", "logging"]]
_LOGGING, _CHECKPOINT = PHASE["logging"], PHASE["checkpoint"]
_OF_PHASE = {
    PHASE[phase]: kind
    for kind, phases in enumerate((["data"], ["checkpoint", "restore"], ["host", "compute", "eval", "logging"]))
    for phase in phases
}
_KIND_WORD = {
    syscalls.METADATA: AT["metadata_looks"],
    syscalls.FAULT: AT["fault_looks"],
    syscalls.WRITE: AT["write_looks"],
    syscalls.SYNC: AT["sync_looks"],
}
_READS = (syscalls.READ, syscalls.METADATA, syscalls.FAULT)
_SIZED = (syscalls.READ, syscalls.WRITE)
_OF_FILES = (DATA, SAVING)
"""Functions in which a server that the loop's own code talks to is an object store."""
_ALL_AT, _PHASE_AT, _SINCE_AT, _WORKER_AT = (
    WORD_AT[name][0] for name in ("mount_looks_all", "phase", "phase_since_ns", "open_worker_pid")
)
_NS, _WINDOW_NS, _COLLECTIVES_NS = (WORD_AT[name][0] for name in ("cause_ns", "window_cause_ns", "waited_ns"))


def enabled() -> bool:
    return os.environ.get("WHYIDLE_WHERE") != "0"


class Shares:
    """Divides the time of one kind of wait among the mounts that looks have found in it."""

    def __init__(self) -> None:
        self._divided_ns = 0
        self._found: Counter[int] = Counter()
        self._all: Counter[int] = Counter()

    def divide(self, total_ns: int, found: int) -> list[tuple[int, int]]:
        """A look has ``found`` this mount (-1: none). Returns (mount, ns).

        ``total_ns``: how long the loop has waited in this way. It includes an estimate of the open wait, so it may
        shrink later. Nothing is divided then until it has made up for that.
        """
        self._found[found] += 1
        grown = total_ns - self._divided_ns
        if grown <= 0:
            return []
        self._divided_ns = total_ns
        self._all += self._found
        parts = _among(self._found, grown)
        self._found.clear()
        return parts

    def rest(self, total_ns: int) -> list[tuple[int, int]]:
        """What the loop has waited since the last look, as all looks have found it."""
        return _among(self._all + self._found, max(0, total_ns - self._divided_ns))


def _among(found: Counter[int], ns: int) -> list[tuple[int, int]]:
    looks = found.total()
    return [(mount, ns * count // looks) for mount, count in found.items() if mount >= 0]


class _Threads(NamedTuple):
    """The threads of a process, without its main one and those of whyidle."""

    due_ns: int
    """When to list them again."""
    moved: dict[int, int]
    """Thread -> the bytes that it has read and written."""
    busiest: list[int]


class StorageLooks:
    """Only the watcher's thread calls it. ``tid``: the training thread."""

    def __init__(
        self,
        machine: PhaseMachine,
        loaders: Loaders,
        tid: int,
        frames: Frames | None = None,
        port: Callable[[], int] = lambda: 0,
    ):
        """``frames``: what looks at the training thread, if anything does. ``port``: that of the store through which
        the ranks meet."""
        self._machine = machine
        self._loaders = loaders
        self._frames = frames
        self._tid = tid
        self._folder = f"/proc/self/task/{tid}"
        self._clock = thread_clock(tid)
        self._mounts = Mounts(machine.write_string)
        self._finder = Finder(self._mounts, port)
        self._readers: dict[str, Reader] = {}
        self._threads: dict[str, _Threads] = {}  # by the folder of their process in /proc
        self._shares = [Shares(), Shares(), Shares()]
        self._rates: list[Rate] = []
        self._last_ns = self._own_ns = self._due = self._faults = 0
        self._itself = False  # whether the last look found the training thread itself, or a program for which it waits

    def expect(self, due_ns: int, _: int) -> None:
        """The next look is at this time."""
        self._due = due_ns

    def look(self) -> None:
        machine, now = self._machine, time.monotonic_ns()
        words = machine.words
        phase, since = words[_PHASE_AT], words[_SINCE_AT]
        kind = _OF_PHASE.get(phase)
        last, self._last_ns = self._last_ns or now, now
        if kind is None or not machine.stepping:
            return
        if kind == _OWN and self._loaders.awaits_maker:
            kind = _DATA
        self._itself = False
        try:
            found = self._look_at_data() if kind == _DATA else self._look_at_own(kind)
        except (OSError, ValueError):  # a worker has ended meanwhile
            return
        if words[_SINCE_AT] != since or words[_PHASE_AT] != phase:
            return  # the wait has ended during the look
        lead = found[0][1] if found else None
        if lead is None and kind == _DATA:  # it computes now, but made its batch as the others do
            lead = next((seen for _, seen in found if seen is not None and seen.slot >= 0), None)
        if kind == _OWN and lead is None:  # it runs
            if phase != _LOGGING:
                return
            lead = Seen(-1)
        if kind == _OWN:
            self._own_ns += min(now - last, _MOST_BETWEEN_NS)
        words[_ALL_AT] += 1
        waited = self._waited(kind, now - since)
        if lead is not None:
            for mount, ns in self._shares[kind].divide(waited, lead.slot):
                words[_NS_AT[kind] + mount] += ns
        self._count(found, now, waited, kind)

    def close(self) -> None:
        """The books are closed, and there is no other look."""
        for kind, shares in enumerate(self._shares):
            for mount, ns in shares.rest(self._waited(kind, 0)):
                self._machine.words[_NS_AT[kind] + mount] += ns

    # -- who reads or writes

    def _look_at_data(self) -> list[tuple[Reader, Seen | None]]:
        """The first is the one that the loop waits for."""
        pid = self._machine.words[_WORKER_AT] or self._loaders.owes_elsewhere()
        if not pid:
            own = self._look_at_own(_DATA)
            if own[0][1] is None or any(seen.slot >= 0 for _, seen in own if seen is not None):
                return own
            makers = self._look_at(sorted(children() - self._loaders.pids))
            return [one for one in makers if one[1] is not None and one[1].slot >= 0] or own
        pids = [process.pid for process in self._loaders.open_workers if process.pid not in (pid, None)]
        return self._look_at([pid, *pids])

    def _look_at(self, pids: list[int]) -> list[tuple[Reader, Seen | None]]:
        """Looks at processes that make batches. The first is the one that the loop waits for."""
        found: list[tuple[Reader, Seen | None]] = []
        for number, pid in enumerate(pids[:_MOST_READERS]):
            folder = f"/proc/{pid}"
            reader = self._reader(folder, folder)
            call, seen = self._finder.look(reader)
            found.append((reader, seen))
            if number == 0 and call is not None and seen is not None and seen.slot < 0:
                if call.kind == syscalls.LOCK:
                    found[:1] = self._blocked_of(folder, folder, pid) or found[:1]
                elif call.kind == syscalls.READ or call.name in syscalls.PROGRAMS or polled_pipes(call, folder):
                    found[:1] = self._look_at(self._working(pid, pid)[:2]) or found[:1]
        return found

    def _look_at_own(self, kind: int) -> list[tuple[Reader, Seen | None]]:
        """Looks at the training thread, and at the threads for which it may wait."""
        reader = self._reader(self._folder, "/proc/self")
        # A logger or a tracker may wait for a server in the loop's own code. That is not storage.
        call, seen = self._finder.look(reader, (lambda _: self._purpose() in _OF_FILES) if kind == _OWN else None)
        self._itself = True
        before, self._faults = self._faults, reader.faults()
        if before < self._faults and (seen is None or seen.slot < 0) and time.monotonic_ns() - self._due > _LATE_NS:
            return [(reader, self._finder.held(reader))]
        if seen is None or call is None or seen.slot >= 0:
            return [(reader, seen)]
        if call.kind == syscalls.LOCK and is_of_interpreter(call.first):
            return [(reader, None)]  # it goes on when this look is over
        if call.name in syscalls.PROGRAMS:
            programs = self._look_at(self._working(os.getpid(), self._tid))
            return [one for one in programs if one[1] is not None and one[1].slot >= 0] or [(reader, seen)]
        if call.kind == syscalls.LOCK and (kind != _OWN or self._machine.device is None):
            self._itself = False
            saves = self._machine.words[_PHASE_AT] == _CHECKPOINT or (kind == _OWN and self._purpose() == SAVING)
            others = self._blocked_of("/proc/self", "/proc/self", self._tid, saves=saves)
            # In the loop's own code it may wait for an accelerator, and a thread that writes may be any logger.
            if kind != _OWN or saves or all(seen is not None and seen.kind in _READS for _, seen in others):
                return others or [(reader, seen)]
        return [(reader, seen)]

    def _purpose(self) -> str:
        """The kind of function that the training thread is in, as `below` has it; empty if it is not known."""
        return self._frames.purpose() if self._frames is not None else ""

    def _blocked_of(
        self, folder: str, process: str, main: int, *, saves: bool = False
    ) -> list[tuple[Reader, Seen | None]]:
        """The threads of a process that are blocked at a mount. ``saves``: the training thread waits in a save, and
        others may write for it."""
        found: list[tuple[Reader, Seen | None]] = []
        ours = folder == "/proc/self"
        # Those of a backend talk to other ranks, and one that reads from a server may belong to a logger.
        writers = self._frames.writers() if saves and self._frames is not None else set()
        tids = self._threads_of(folder, main)
        if any(not os.path.exists(f"{folder}/task/{tid}") for tid in tids):  # some start a thread for each file
            tids = self._threads_of(folder, main, again=True)
        for tid in tids:
            reader = self._reader(f"{folder}/task/{tid}", process)
            sends = tid in writers
            _, seen = self._finder.look(
                reader, (lambda of, sends=sends: sends and of == syscalls.WRITE) if ours else None
            )
            if seen is not None and seen.slot >= 0:
                found.append((reader, seen))
        return found

    def _threads_of(self, folder: str, main: int, *, again: bool = False) -> list[int]:
        """The other threads of a process: those that have read or written most since they were last listed, and then
        the newest ones: what a thread reads counts when it has come. Libraries start threads that Python does not know.
        """
        now = time.monotonic_ns()
        listed = self._threads.get(folder)
        if listed is None or now >= listed.due_ns or again:
            ours = {thread.native_id for thread in threading.enumerate() if thread.name.startswith(OURS)}
            tids = [tid for tid in proc.numbers_in(f"{folder}/task") if tid != main and tid not in ours]
            moved = {tid: moved_by(f"{folder}/task/{tid}") for tid in tids[-_MOST_LISTED:]}
            before = listed.moved if listed is not None else {}
            busiest = sorted(moved, key=lambda tid: (before.get(tid, 0) - moved[tid], -tid))
            self._threads = {folder: (listed := _Threads(now + _THREADS_AGAIN_NS, moved, busiest[:_MOST_READERS]))}
        return listed.busiest

    def _programs(self, pid: int, tid: int = 0) -> list[int]:
        """The programs that a thread has started, or the main one: such as those of a `pipe:` of WebDataset."""
        return [int(child) for child in proc.read_file(f"/proc/{pid}/task/{tid or pid}/children", 4096).split()]

    def _working(self, pid: int, tid: int) -> list[int]:
        """The programs for which a thread waits: not the shell, but what it runs."""
        found = self._programs(pid, tid)
        for _ in range(_SHELLS):
            found = [inner for child in found[:_MOST_LISTED] for inner in self._programs(child) or [child]]
        return found[-_MOST_READERS:]

    def _reader(self, folder: str, process: str) -> Reader:
        reader = self._readers.get(folder)
        if reader is None or reader.gone:
            if len(self._readers) >= _KEPT:
                self._readers.clear()
            reader = self._readers[folder] = Reader(folder, process)
        return reader

    # -- what is counted

    def _waited(self, kind: int, open_ns: int) -> int:
        """How long the loop has waited in this way since the first step, with the open wait."""
        words, device = self._machine.words, self._machine.device is not None
        if kind == _OWN and device:
            return self._own_ns  # the books of a device do not know how long its host was blocked
        total = sum(words[_NS + CAUSE[cause]] - words[_WINDOW_NS + CAUSE[cause]] for cause in _CAUSES[kind])
        if kind == _OWN or (device and open_ns < _LONG_NS):  # the device may have work
            return total
        return total + open_ns

    def _count(self, found: list[tuple[Reader, Seen | None]], now: int, waited_ns: int, kind: int) -> None:
        words = self._machine.words
        looked = [reader for reader, _ in found]
        own: int | None = None
        if self._itself and len(found) == 1:
            # The loop may also have computed since the last look. That time does not count.
            own = waited_ns
            if kind == _OWN or self._machine.device is not None:
                own = now - time.clock_gettime_ns(self._clock) - words[_COLLECTIVES_NS]
        while len(self._rates) < len(self._mounts.used):
            self._rates.append(Rate(words, self._mounts.used[len(self._rates)]))
        busy = any(seen is not None and seen.slot >= 0 for _, seen in found)
        for slot, rate in enumerate(self._rates):
            blocked = [(reader, seen) for reader, seen in found if seen is not None and seen.slot == slot]
            if not busy:
                rate.nobody()
                continue
            if not blocked:
                rate.look(now, kind, own, [], [])
                continue
            first = blocked[0][1]
            words[AT["looks"] + slot] += 1
            words[AT["readers"] + slot] += len(blocked)
            words[AT["guesses"] + slot] += first.guess
            if (at := _KIND_WORD.get(first.kind)) is not None:
                words[at + slot] += 1
            for _, seen in blocked:
                if seen.size and seen.kind in _SIZED:
                    words[AT["calls_seen"] + slot] += 1
                    words[AT["call_bytes"] + slot] += seen.size
            syncs = first.kind == syscalls.SYNC
            writes = syncs or first.kind == syscalls.WRITE
            readers = [reader for reader, _ in blocked]
            rate.look(now, kind, own, readers, looked, writes=writes, syncs=syncs)
