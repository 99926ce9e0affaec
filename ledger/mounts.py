"""The mounts, and the servers of object stores, that hold the files of a loop: their words and strings in the ledger.

A watcher looks now and then at whoever reads or writes for the loop while the loop waits for it. It does this from
inside the rank's own mount namespace, and without privileges. The mount and at most the first directory below it are
kept, and names of files only if WHYIDLE_FILES allows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

MOUNTS = 6
"""How many mounts a ledger tells apart: those seen first. Others count only in `mount_looks_all`."""
MOUNT_LABELS: tuple[str, ...] = tuple(f"mount{index}" for index in range(MOUNTS))
"""The strings `POINT FIRST TYPE SOURCE`, in which blanks are written as in mountinfo (`\\040`) and `-` is nothing. An
object store has its address as POINT (`10.0.0.7:9000`), and `tcp` as TYPE. The string of an unused mount is empty."""

SIDES = 4
"""Numbers of readers at the same time that are told apart: 1, 2, 3, and more."""
LIMITS: tuple[str, ...] = ("", "io.max", "blkio.throttle")
"""What a known limit of a mount's rate comes from."""

MOUNT_WORDS: dict[str, int] = {
    "mount_data_ns": MOUNTS,  # the loop waited for batches, and looks found its reader blocked at this mount
    "mount_save_ns": MOUNTS,  # it was blocked in saves or restores, at this mount
    "mount_own_ns": MOUNTS,  # its own code was blocked at this mount, in no phase that hooks see
    "mount_looks": MOUNTS,  # looks that found somebody blocked at this mount
    "mount_guesses": MOUNTS,  # part of mount_looks: known by open files only
    "mount_metadata_looks": MOUNTS,  # part of mount_looks: in open, stat, getdents
    "mount_fault_looks": MOUNTS,  # part: a page of a mapped file was read
    "mount_write_looks": MOUNTS,  # part: in write
    "mount_sync_looks": MOUNTS,  # part: in fsync and its like
    "mount_readers": MOUNTS,  # sum over mount_looks of how many were blocked there at that moment
    "mount_calls_seen": MOUNTS,  # read and write calls seen whose size is known
    "mount_call_bytes": MOUNTS,  # the sum of their sizes
    # What was moved while looks found somebody blocked there.
    "mount_bytes": MOUNTS,
    "mount_measured_ns": MOUNTS,  # in this time
    "mount_counted": MOUNTS,  # 1: by the mount's own counters; 0: by those of the processes, so it is an upper bound
    # The same by the number of readers at the same time.
    "mount_beside_bytes": MOUNTS * SIDES,
    "mount_beside_ns": MOUNTS * SIDES,
    "mount_limit": MOUNTS,  # bytes a second that are allowed; 0: not known
    "mount_limit_by": MOUNTS,  # index into LIMITS
    # What the mount's own counters (mountstats of NFS, stat of a block device) say, on the whole node.
    "mount_operations": MOUNTS,
    "mount_queue_ns": MOUNTS,  # how long they were queued before they were sent
    "mount_trip_ns": MOUNTS,  # how long they took, without the queue
    "mount_resent": MOUNTS,  # sent again
    "mount_opened": MOUNTS,  # files; only NFS 4 counts them, and only those that its server was asked to open
}

STORE = "tcp"
"""The type of an object store: the peer of a process's connections, in place of a mount."""


def common_path(one: str, other: str) -> str:
    """The directories with which both paths begin."""
    both = takewhile(lambda pair: pair[0] == pair[1], zip(one.split("/"), other.split("/"), strict=False))
    return "/".join(part for part, _ in both)


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of a rank. Times in ns."""

    index: int
    point: str
    first: str
    """The first directory below the mount point in which the files are, or their longest common path if names of files
    are allowed; empty if they have none in common."""
    fstype: str
    source: str
    words: Mapping[str, int]
    """The mount's words, without `mount_` in the name."""
    beside: tuple[tuple[int, int], ...]
    """(bytes, ns) by the number of readers at the same time, less 1."""

    def __getattr__(self, name: str) -> int:
        try:
            return self.words[name]
        except KeyError:
            raise AttributeError(name) from None


def mount_text(point: str, first: str, fstype: str, source: str) -> str:
    return " ".join(_escape(part) or "-" for part in (point, first, fstype, source))


def _escape(text: str) -> str:
    return text.replace("\\", r"\134").replace(" ", r"\040")


def _plain(text: str) -> str:
    return "" if text == "-" else text.replace(r"\040", " ").replace(r"\134", "\\")


def mount_of(index: int, text: str, words: Mapping[str, tuple[int, ...]]) -> Mount | None:
    """None if the mount is not used. A text that was cut off has empty parts."""
    if not text:
        return None
    point, first, fstype, source = ([_plain(part) for part in text.split(" ", 3)] + [""] * 3)[:4]
    own = {name.removeprefix("mount_"): words[name][index] for name, size in MOUNT_WORDS.items() if size == MOUNTS}
    sides = slice(index * SIDES, (index + 1) * SIDES)
    beside = tuple(zip(words["mount_beside_bytes"][sides], words["mount_beside_ns"][sides], strict=True))
    return Mount(index, point, first, fstype, source, own, beside)
