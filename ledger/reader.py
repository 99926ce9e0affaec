"""How another process reads a ledger: it takes a consistent copy and checks every field.

A ledger is untrusted input: the agent may run as root, and anyone may write to the directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from . import text
from .background import BACKGROUND_LABELS, SIGNED, Background, background_of
from .causes import (
    CAUSE,
    CAUSES,
    COLLECTIVE_OPS,
    HOOK_STATES,
    HOOKS,
    LATE_FAMILIES,
    PHASE_CAUSE,
    PHASES,
    WAIT_CAUSES,
)
from .clock import Clock, asleep_ns, own_clock, shift_ns, shift_ticks
from .deaths import OomKill, found_dead, oom_of
from .given import MEMORY_OF
from .gpus import DEVICES, UNUSED
from .layout import (
    BEGINNINGS,
    CALL_WORDS,
    CALLS_AT,
    CHECKSUM_AT,
    CULPRITS,
    HEAD_BYTES,
    INTERRUPTED,
    LEDGER_BYTES,
    MAGIC,
    RING_CALLS,
    RING_STEPS,
    SAVES_KEPT,
    SLOTS,
    SNAPSHOTS_AT,
    STEP_WORDS,
    STRING_AT,
    VERSION,
    WORD_AT,
    Call,
    call_of,
    checksum,
    link_of,
)
from .links import LINK_LABELS, Link, link_at
from .mounts import MOUNT_LABELS, Mount, mount_of
from .snapshots import Snapshot, leave_out, snapshots_of

_FLOCK = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
_MAX_NS = 1 << 61
_CLOCKS_AGREE_NS = 1_000_000_000
_BEGUN_AT = WORD_AT["steps_begun"][0] * 8
_END_OF_BEGUN = WORD_AT["calls_begun"][0] * 8 + 8


class LedgerError(Exception):
    """A ledger that cannot be used. ``reason`` is one of :data:`LEDGER_REASONS` and can be used as a label."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason


LEDGER_REASONS: tuple[str, ...] = (
    "short",  # smaller or larger than a ledger of its version must be
    "foreign",  # no magic: not a ledger
    "version",  # written by another version of whyidle
    "nonsense",  # a field is out of its range
    "not_regular",  # a symlink, FIFO, socket, directory or device
    "denied",
    "torn",  # no try got a consistent copy, although the writer is alive
    "died_mid_write",  # it is used anyway: at most its last update is missing
    "too_many",  # more entries than MAX_LEDGERS
    "duplicate",  # another live ledger that claims the same run and rank
    "directory",  # the directory itself cannot be listed
    "io",
)


@dataclass(slots=True)
class Step:
    """One step, without the time in it that was outside the loop. Times in ns.

    ``causes`` in the order of :data:`causes.CAUSES`, with all waits under `collective`.
    """

    number: int
    end_ns: int
    wall_ns: int
    causes: tuple[int, ...]
    first_ns: int = 0
    """The part of the waits for data that was the first for a worker after `__iter__`."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The waits of a rank in one group of ranks since its process started. Times in ns."""

    index: int
    label: str
    key: int
    """The same on all ranks of the group, and on no others."""
    size: int
    """How many ranks the group has."""
    pairwise: bool
    """Whether its ranks send to each other instead of using collectives."""
    calls: int
    """Waits that both the rank and its device have entered."""
    waited: int
    pending: int
    network: int
    straggler: int
    pipeline: int
    latency: int
    """Part of `pipeline`: what transfers cost beyond the waits for this rank's own messages."""
    link: tuple[int, int] | None
    """The two ranks of the link that caused most of `latency`."""
    queue: int
    """The time in transfers in which a CPU rank's own threads got no CPU."""
    unsplit: int
    bytes: dict[str, int]
    """The bytes that the rank passed to collectives in this group, by operation."""
    settled: int
    """The last step whose waits are settled (split, or left unsplit); -1: no wait of this rank was ever pending."""
    behind: dict[int, int]
    """The late ranks for which it waited longest -> ns."""
    late_own: dict[str, int]
    """How late the rank was here through its own time: family -> ns."""
    late_elsewhere: dict[int, int]
    """How late it was here because it waited in other groups: slot -> ns."""


class Saved(NamedTuple):
    """A finished save. Its file may exist no longer."""

    step: int
    attempt: int
    path: int
    """A hash of the path; 0: not known."""
    unix_ns: int
    """When the file was last modified. If that is not known, minus the time of the save."""


class Position(NamedTuple):
    """The phase that a rank is in."""

    phase: str
    since_ns: int
    slot: int
    """The slot of the wait that it is in; -1 if it is not in a wait."""


@dataclass(slots=True)
class Ledger:
    """A consistent copy of one ledger. Durations are ns; moments are ns of the reader's CLOCK_MONOTONIC.

    A moment is negative if it lies before that clock started: the rank ran before the machine's last boot, or the
    writer or the reader is in a time namespace.
    """

    path: str
    alive: bool
    died_mid_write: bool
    strings: dict[str, str]
    words: dict[str, tuple[int, ...]]
    ring: list[Step] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    """Its sums over its whole life, oldest first; see snapshots.py."""
    calls: list[Call] = field(default_factory=list)
    """The last waits, oldest first. Those of a rank that has ended include the waits after its last step; those of a
    rank that was killed do not."""
    rest: Step | None = None
    """What a rank that has ended did after its last step, as if that were another step."""
    visible_pid: int = 0
    """The live writer's pid as this process sees it; 0 if it cannot see the writer's pid namespace."""
    uid: int = -1
    """The user who owns the file: the only thing about a ledger that its writer cannot forge."""
    found_dead_ns: int | None = None
    """When it was found dead, if it was killed: see deaths.py. None: nobody has noted it yet."""
    oom: OomKill | None = None
    """What the kernel says, if memory ran out. None: nothing is known."""

    def __getattr__(self, name: str) -> int:
        # Python calls this only for names that are not fields: the layout's words.
        try:
            return self.words[name][0]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def idle_seconds(self) -> float:
        """Seconds since a live writer last entered a phase."""
        return max(0.0, (time.monotonic_ns() - self.phase_since_ns) / 1e9)

    @property
    def ended_seconds(self) -> float:
        """Seconds since the rank ended; 0 if it is alive. If it was killed, since it was found dead."""
        if self.alive:
            return 0.0
        end_ns = max(self.last_sign_ns, self.found_dead_ns or self.last_sign_ns)
        return max(0.0, (time.monotonic_ns() - end_ns) / 1e9)

    @property
    def machine_suspended_ns(self) -> int:
        """For how long the machine was suspended since the ledger of a live rank was created. No sum has this time:
        CLOCK_MONOTONIC stood still. 0 if it is not known.

        CLOCK_BOOTTIME tells only if ``start_ns`` is the start of the process. It is not in the second ledger of a
        process. The wall clock tells only if it was not set. So both must agree.
        """
        if not self.alive or not self.pid_start_ticks or self.strings["boot"] != own_clock().boot:
            return 0
        before = self.pid_start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - self.start_ns
        found = asleep_ns() - before
        by_wall = time.time_ns() - self.created_unix_ns - (time.monotonic_ns() - self.created_ns)
        return max(0, min(found, by_wall)) if abs(found - by_wall) < _CLOCKS_AGREE_NS else 0

    @property
    def death_unnoted(self) -> bool:
        """Whether it was killed, and nobody has noted when it was found dead."""
        return not self.alive and not self.ended and self.found_dead_ns is None

    @property
    def until_ns(self) -> int:
        """The moment up to which the causes account. On CUDA it lags behind by the steps in flight."""
        return self.accounted_ns or self.phase_since_ns

    @property
    def last_sign_ns(self) -> int:
        """The last moment at which the rank is known to have lived."""
        return max(self.until_ns, self.phase_since_ns, self.heartbeat_ns or self.phase_since_ns)

    @property
    def has_returned(self) -> bool:
        """Whether its training had come to an end, although its process lived on: the optimizer of the last step was
        deleted, or its thread had ended, and it has done nothing else since. Or it has called ``os._exit(0)``."""
        if self.exited:
            return self.exited == 1
        last_ns = self.ring[-1].end_ns if self.ring else self.phase_since_ns
        return self.returned_ns > 0 and self.returned_ns >= last_ns and self.stands_still

    @property
    def stands_still(self) -> bool:
        """Whether it is in the loop's own code, as far as hooks can see. Without a loader, that counts as compute."""
        own = ("host", "shutdown") if self.batches or self.marked_data else ("host", "shutdown", "compute")
        return not self.device_phase and self.phase_name in own and not self.strings["failure"]

    @property
    def first_whole_step(self) -> int:
        """The first step (counted in its process from 1) that is still whole in the rings, otherwise the next step."""
        first = self.steps - len(self.ring) + 1
        if max(self.calls_written, self.calls_begun) > RING_CALLS:
            first = max(first, self.calls[0].step + 1 if self.calls else self.steps + 1)
        return first

    @property
    def run(self) -> str:
        return self.strings["run"]

    @property
    def owner(self) -> str:
        """The owner of the run; empty if the ledger does not name one."""
        return self.strings["owner"]

    @property
    def node(self) -> str:
        return self.strings["node"]

    @property
    def device(self) -> str:
        return self.strings["device"]

    @property
    def phase_name(self) -> str:
        return PHASES[self.words["phase"][0]]

    @property
    def position(self) -> Position:
        """The position of the rank now. If its device is known to lag behind its host, the position of the device."""
        if self.device_phase:
            return Position(PHASES[self.device_phase - 1], self.device_since_ns, self.device_slot - 1)
        return Position(self.phase_name, self.phase_since_ns, self.open_slot)

    @property
    def open_peer_rank(self) -> int:
        """The rank at the other end of the send or receive that the host waits for; -1 if it is not known."""
        return self.open_peer - 1 if self._waits_pairwise else -1

    @property
    def open_group_number(self) -> int:
        """Which of the process groups with the same ranks its host waits in. All these ranks have the same number for
        it. 0: the world, or not known."""
        return self.open_peer if self._waits_pairwise is False else 0

    @property
    def _waits_pairwise(self) -> bool | None:
        """Whether the host waits in a send or receive; None if it does not wait, or if its device has stopped."""
        if self.open_slot < 0 or self.device_phase:
            return None
        return bool(self.words["slot_pairwise"][self.open_slot])

    @property
    def waits_reached(self) -> int:
        """How many waits in collectives both the rank and its device have entered."""
        return self.collectives - sum(self.words["slot_ahead"])

    @property
    def cause_ns(self) -> dict[str, int]:
        """Cumulative ns per cause since the process started. Waits that are not split yet are in `pending_ns`."""
        return dict(zip(CAUSES, self.words["cause_ns"], strict=True))

    @property
    def slots(self) -> list[Slot]:
        """The groups in which this rank waits."""
        return [self._slot(index) for index in range(SLOTS) if self.words["slot_key"][index]]

    @property
    def saves(self) -> list[Saved]:
        """The last saves, oldest first."""
        words, noted = self.words, self.saves_noted
        rings = (words["saved_step"], words["saved_path"], words["saved_unix_ns"])
        kept = range(max(0, noted - SAVES_KEPT), noted)
        found = ((ring[number % SAVES_KEPT] for ring in rings) for number in kept)
        return [Saved(step, self.attempt, path, unix_ns) for step, path, unix_ns in found]

    @property
    def mounts(self) -> list[Mount]:
        """The mounts at which somebody was blocked for the loop."""
        found = (mount_of(index, self.strings[label], self.words) for index, label in enumerate(MOUNT_LABELS))
        return [mount for mount in found if mount is not None]

    @property
    def links(self) -> list[Link]:
        """The links of the rank's node, as the rank sees it."""
        found = (link_at(index, self.strings[label], self.words) for index, label in enumerate(LINK_LABELS))
        return [link for link in found if link is not None]

    @property
    def backgrounds(self) -> list[Background]:
        """What worked beside the training."""
        found = (background_of(index, self.strings[name], self.words) for index, name in enumerate(BACKGROUND_LABELS))
        return [one for one in found if one is not None]

    def _slot(self, index: int) -> Slot:
        def of(name: str) -> int:
            return self.words[f"slot_{name}"][index]

        culprits = slice(index * CULPRITS, (index + 1) * CULPRITS)
        sizes = self.words["slot_op_bytes"][index * len(COLLECTIVE_OPS) : (index + 1) * len(COLLECTIVE_OPS)]
        own = self.words["late_own_ns"][index * len(LATE_FAMILIES) : (index + 1) * len(LATE_FAMILIES)]
        elsewhere = self.words["late_elsewhere_ns"][index * SLOTS : (index + 1) * SLOTS]
        behind = zip(self.words["culprit"][culprits], self.words["culprit_ns"][culprits], strict=True)
        return Slot(
            index=index,
            label=self.strings[f"group{index}"],
            key=of("key"),
            size=of("size"),
            pairwise=bool(of("pairwise")),
            calls=max(0, of("calls") - of("ahead")),
            waited=of("waited_ns"),
            pending=of("pending_ns"),
            network=of("network_ns"),
            straggler=of("straggler_ns"),
            pipeline=of("pipeline_ns"),
            latency=of("latency_ns"),
            link=link_of(of("link")),
            queue=of("queue_ns"),
            unsplit=of("unsplit_ns"),
            bytes={op: size for op, size in zip(COLLECTIVE_OPS, sizes, strict=True) if size},
            settled=of("settled"),
            behind={rank - 1: ns for rank, ns in behind if rank},
            late_own={family: ns for family, ns in zip(LATE_FAMILIES, own, strict=True) if ns},
            late_elsewhere={slot: ns for slot, ns in enumerate(elsewhere) if ns},
        )

    @property
    def hook_states(self) -> dict[str, str]:
        return {hook: HOOK_STATES[state] for hook, state in zip(HOOKS, self.words["hook_states"], strict=True)}


_FIRST_WORD = min(at for at, _ in WORD_AT.values())
_END_OF_WORDS = max(at + count for at, count in WORD_AT.values())
_HEAD = struct.Struct(f"<{HEAD_BYTES // 8}q")
_RING = struct.Struct(f"<{len(STEP_WORDS)}q")
_TRIES = 36
_MOST_WAITED_NS, _FEW_TRIES = 200_000_000, 3
"""If one round of reading waits longer for the ledgers of a user, the others of this user get only a few tries.

A process can hold the locks of a thousand ledgers whose updates never end; each would take all tries at each look.
"""
_PAUSE_SECONDS, _LONGER, _LONGEST_SECONDS = 20e-6, 1.2, 1e-3
"""The pause between two tries grows: 20 ms in total, in case the writer lost its CPU during an update."""
_COLLECTIVE = CAUSE["collective"]
_WAITS = tuple(CAUSE[cause] for cause in WAIT_CAUSES)


def read_ledger(path: str, *, steps: bool = False, waited: Counter[int] | None = None) -> Ledger:
    """Reads one ledger; with ``steps`` also its rings of steps and calls, oldest first.

    ``waited``: by uid, the nanoseconds that this round of reading has spent on ledgers that were being written.
    Raises LedgerError for anything that is not a valid ledger of this version.
    A process must never call this for its own ledger: closing any descriptor of a file drops the process's record locks
    on it (POSIX), and the rank would seem to have ended.
    """
    try:
        # O_NONBLOCK: if the path is a FIFO, the open must not block.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise LedgerError(_reason_of(error), f"{path}: {error.strerror}") from error
    try:
        return _read_fd(fd, path, steps, Counter() if waited is None else waited)
    except OSError as error:
        raise LedgerError("io", f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)


def _reason_of(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
        return "not_regular"
    return "denied" if error.errno in (errno.EACCES, errno.EPERM) else "io"


def _read_fd(fd: int, path: str, steps: bool, waited: Counter[int]) -> Ledger:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise LedgerError("not_regular", f"{path}: not a regular file")
    start = os.pread(fd, 16, 0)
    if start[: len(MAGIC)] != MAGIC:
        raise LedgerError("foreign" if len(start) == 16 else "short", f"{path}: not a ledger")
    version = int.from_bytes(start[8:16], "little", signed=True)
    if version != VERSION:
        raise LedgerError(
            "version",
            f"{path}: written by another version of whyidle (format {version}; this one reads format {VERSION})",
        )
    if status.st_size != LEDGER_BYTES:
        raise LedgerError("short", f"{path}: {status.st_size} bytes; a ledger has {LEDGER_BYTES}")
    alive, pid = _lock_holder(fd)
    raw, torn = _consistent_copy(fd, path, LEDGER_BYTES if steps else HEAD_BYTES, alive, status.st_uid, waited)
    ledger = parse_ledger(raw, path, alive=alive, died_mid_write=torn)
    ledger.visible_pid, ledger.uid = pid, status.st_uid
    if ledger.death_unnoted and (unix_ns := found_dead(path, status.st_uid)) is not None:
        ledger.found_dead_ns = time.monotonic_ns() - max(0, time.time_ns() - unix_ns)
        ledger.oom = oom_of(path, status.st_uid)
    return ledger


def parse_ledger(raw: bytes, path: str, *, alive: bool, died_mid_write: bool = False) -> Ledger:
    """Parses a copy of a ledger: of its head, or of the whole with its rings.

    Raises LedgerError("nonsense") for a value outside its range.
    """
    words = _HEAD.unpack_from(raw)
    ledger = Ledger(
        path=path,
        alive=alive,
        died_mid_write=died_mid_write,
        strings={name: text.read(raw[at : at + size]) for name, (at, size) in STRING_AT.items()},
        words={name: words[at : at + count] for name, (at, count) in WORD_AT.items()},
    )
    _check(ledger, words)
    shift = _to_own_clock(ledger)
    _check_times(ledger)
    if len(raw) == LEDGER_BYTES:
        ledger.ring = _ring(raw, ledger, shift)
        ledger.rest = _rest(raw, ledger)
        ledger.calls = _calls(raw, ledger)
        ends = ledger.window_ns - shift, ledger.last_sign_ns - shift
        ledger.snapshots = snapshots_of(raw, SNAPSHOTS_AT * 8, *ends, shift) if ledger.window_ns else []
    return ledger


def _lock_holder(fd: int) -> tuple[bool, int]:
    """Whether a process holds the write lock of the file, and its pid as this process sees it.

    The pid is 0 if this process cannot see the holder's pid namespace. F_GETLK works on a read-only descriptor and
    across namespaces.

    It asks which lock would prevent a read lock. Only a write lock does, and only the owner of the file can take one.
    Anybody could hold a read lock: if those counted, a rank that has ended could seem to be alive.
    """
    flock = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)))
    held = flock[0] != fcntl.F_UNLCK
    return held, max(0, flock[4]) if held else 0


def is_held(path: str) -> bool:
    """Whether a live process holds this ledger, which may be of any version. Raises OSError if it cannot be opened.

    Like ``read_ledger``, never for the process's own ledger.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _lock_holder(fd)[0]
    finally:
        os.close(fd)


def _consistent_copy(fd: int, path: str, size: int, alive: bool, uid: int, waited: Counter[int]) -> tuple[bytes, bool]:
    """A copy whose head is of one update -> (bytes, whether the writer died while it wrote the head).

    The rings can be newer than the head; `steps_begun` and `calls_begun` are newer than the rings.
    """
    raw = b""
    tries = _TRIES if waited[uid] < _MOST_WAITED_NS else _FEW_TRIES
    for attempt in range(tries):
        before, raw = raw, os.pread(fd, size, 0)
        if len(raw) != size:
            raise LedgerError("short", f"{path}: cut short while it was read")
        if _intact(raw):
            if size > HEAD_BYTES:
                begun = os.pread(fd, _END_OF_BEGUN - _BEGUN_AT, _BEGUN_AT)
                raw = raw[:_BEGUN_AT] + begun.ljust(_END_OF_BEGUN - _BEGUN_AT, b"\0") + raw[_END_OF_BEGUN:]
            return raw, False
        if not alive and raw == before:
            return raw, True
        if attempt:
            pause = min(_PAUSE_SECONDS * _LONGER**attempt, _LONGEST_SECONDS)
            time.sleep(pause)
            waited[uid] += round(1e9 * pause)
    if not _lock_holder(fd)[0]:
        return raw, True
    raise LedgerError("torn", f"{path}: no consistent copy in {tries} tries")


def _intact(raw: bytes) -> bool:
    return int.from_bytes(raw[CHECKSUM_AT : CHECKSUM_AT + 8], "little") == checksum(raw)


_SMALL = {
    "rank": 1 << 20,
    "world_size": 1 << 20,
    "local_rank": 1 << 20,
    "local_world_size": 1 << 20,
    "dead_worker_signal": 255,
    "dead_worker_status": 255,
    "alive_at_end": 1 << 20,
    "attempt": 1 << 20,
    "ended": INTERRUPTED,
    "device_index": 1 << 16,
    "open_slot": SLOTS - 1,
    "open_peer": 1 << 20,
    "device_phase": len(PHASES),
    "device_slot": SLOTS,
    "slot_link": (1 << 40) - 1,
    "beginning": len(BEGINNINGS) - 1,
    "gpu_unused": len(UNUSED) - 1,
    "gpus_visible": 1 << 16,
    "memory_of": len(MEMORY_OF) - 1,
    "devices_used": (1 << DEVICES) - 1,
    "stopped_by": 64,
    "exited": 256,
    "restored_attempt": 1 << 20,
}
_MAY_BE_MINUS_ONE = {"device_index", "local_rank", "checkpoint_step", "open_slot", "slot_settled", "loader_workers"}
_MOMENTS = (
    "created_ns",
    "start_ns",
    "heartbeat_ns",
    "phase_since_ns",
    "accounted_ns",
    "window_ns",
    "returned_ns",
    "device_since_ns",
    "stuck_since_ns",
    "memory_at_ns",
    "cpus_changed_ns",
)
_RANGES: dict[str, tuple[int, int]] = {
    **{name: (-1 if name in _MAY_BE_MINUS_ONE else 0, _SMALL.get(name, _MAX_NS)) for name in WORD_AT},
    # In a time namespace, a process may have started before its clock did. Its first phase began then, too.
    **dict.fromkeys(
        (
            *(*_MOMENTS, "pid_start_ticks", "open_worker_start_ticks", "clock_offsets_ns"),
            *("saved_unix_ns", *SIGNED),
        ),
        (-_MAX_NS, _MAX_NS),
    ),
}
_UNLIKE_MOST = [(name, WORD_AT[name], allowed) for name, allowed in _RANGES.items() if allowed != (0, _MAX_NS)]


def _check(ledger: Ledger, words: tuple[int, ...]) -> None:
    """Checks the range of every field: a single absurd value would spoil a counter for ever."""
    rest = list(words)
    for name, (first, count), (least, most) in _UNLIKE_MOST:
        for at in range(first, first + count):
            if not least <= rest[at] <= most:
                raise LedgerError("nonsense", f"{ledger.path}: {name} is {rest[at]}")
            rest[at] = 0
    rest = rest[_FIRST_WORD:_END_OF_WORDS]
    if min(rest) < 0 or max(rest) > _MAX_NS:
        name, value = _absurd(ledger)
        raise LedgerError("nonsense", f"{ledger.path}: {name} is {value}")
    if ledger.phase >= len(PHASES):
        raise LedgerError("nonsense", f"{ledger.path}: phase is {ledger.phase}")
    if any(state >= len(HOOK_STATES) for state in ledger.words["hook_states"]):
        raise LedgerError("nonsense", f"{ledger.path}: a hook's state is unknown")
    if not ledger.run:
        raise LedgerError("nonsense", f"{ledger.path}: no run")


def _to_own_clock(ledger: Ledger) -> int:
    """Moves all moments to the clock of this process. Returns by how many ns."""
    words = ledger.words
    writer = Clock(ledger.strings["boot"], *words["clock_offsets_ns"])
    if writer == own_clock():
        return 0
    latest = ledger.last_sign_ns
    shift = shift_ns(writer, ledger.created_unix_ns, ledger.created_ns, latest)
    if shift:
        for name in _MOMENTS:
            (moment,) = words[name]
            # 0 means "not yet", except for start_ns: a process may start when its clock does.
            if moment or name == "start_ns":
                words[name] = (moment + shift,)
    if ticks := shift_ticks(writer):
        for name in ("pid_start_ticks", "open_worker_start_ticks"):
            if words[name][0]:
                words[name] = (words[name][0] + ticks,)
    return shift


def _check_times(ledger: Ledger) -> None:
    now = time.monotonic_ns() + 1_000_000_000
    latest = max(ledger.phase_since_ns, ledger.heartbeat_ns or ledger.phase_since_ns)
    if latest > now or sum(ledger.words["cause_ns"]) > now - min(ledger.start_ns, 0) + 1_000_000_000:
        raise LedgerError("nonsense", f"{ledger.path}: accounts for more time than this machine has been up")


def _absurd(ledger: Ledger) -> tuple[str, int]:
    """The name and value of the first field outside its range."""
    for name, values in ledger.words.items():
        least, most = _RANGES[name]
        for value in values:
            if not least <= value <= most:
                return name, value
    raise AssertionError("every value is in its range")


def _ring(raw: bytes, ledger: Ledger, shift: int) -> list[Step]:
    """The last steps, oldest first. A full ring gives one fewer than it holds: a step is the difference of two entries.

    ``shift`` moves the ends of the steps to the reader's clock.
    """
    written = ledger.steps
    first = max(0, max(written, ledger.steps_begun) - RING_STEPS)
    before = (ledger.window_waited_ns, *ledger.words["window_cause_ns"])
    first_before = 0
    steps = []
    for number in range(first, written):
        step, end_ns, wall_ns, waited, first_ns, *causes = _RING.unpack_from(
            raw, HEAD_BYTES + (number % RING_STEPS) * _RING.size
        )
        now = waited, *causes
        if number > first or first == 0:
            spent = _grown(now, before)
            wall_ns -= leave_out(spent)
            steps.append(Step(step, end_ns + shift, max(0, wall_ns), tuple(spent), first_ns - first_before))
        before, first_before = now, first_ns
    return steps


def _grown(now: Sequence[int], before: Sequence[int]) -> list[int]:
    """The causes of a step, from the cumulative (waited, causes...) at its end and at its start."""
    waited, *causes = (a - b for a, b in zip(now, before, strict=True))
    for cause in _WAITS:
        causes[cause] = 0
    causes[_COLLECTIVE] = waited
    return causes


def _rest(raw: bytes, ledger: Ledger) -> Step | None:
    if ledger.alive or not ledger.ring:
        return None
    last = ledger.ring[-1]
    at = HEAD_BYTES + ((ledger.steps - 1) % RING_STEPS) * _RING.size
    _, _, _, waited, _, *before = _RING.unpack_from(raw, at)
    causes = _grown((ledger.waited_ns, *ledger.words["cause_ns"]), (waited, *before))
    end_ns = ledger.last_sign_ns
    if not ledger.ended:  # it was killed in its open phase
        phase, since_ns, _ = ledger.position
        causes[CAUSE[PHASE_CAUSE[phase]]] += end_ns - max(since_ns, ledger.until_ns)
    return Step(last.number + 1, end_ns, max(0, end_ns - last.end_ns), tuple([max(0, ns) for ns in causes]))


def _calls(raw: bytes, ledger: Ledger) -> list[Call]:
    """The last waits, oldest first. Leaves out invalid entries, such as those of a step that has not begun."""
    written, last = ledger.calls_written, ledger.steps + 1
    words = [*struct.iter_unpack(f"<{CALL_WORDS}Q", raw[CALLS_AT * 8 : SNAPSHOTS_AT * 8])]
    first = max(0, max(written, ledger.calls_begun) - RING_CALLS)
    found = (call_of(*words[number % RING_CALLS], last_step=last) for number in range(first, written))
    return [call for call in found if call.step > 0]
