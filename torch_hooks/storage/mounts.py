"""The mounts of this process, and which of them have a place in the ledger.

Nothing here opens a user's file or asks a file system for anything: on a server that does not answer, such a question
would never end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...ledger.layout import STRING_AT
from ...ledger.mounts import MOUNT_LABELS, MOUNTS, STORE, common_path, mount_text
from ...linux.mountinfo import Mount, mount_of, mounts, open_file
from ...linux.unreadable import Unreadable
from .. import proc

_AGAIN_NS = 60_000_000_000
_PATH_AGAIN_NS = 1_000_000_000
_DEEP = 16
_LABEL_BYTES = STRING_AT[MOUNT_LABELS[0]][1]
# fmt: off
_NO_STORAGE = frozenset(
    {
        "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl", "hugetlbfs",
        "mqueue", "nsfs", "proc", "pstore", "ramfs", "securityfs", "sysfs", "tmpfs", "tracefs",
    }
)
# fmt: on


@dataclass(slots=True)
class Used:
    """A mount, or an object store, that has a place in the ledger."""

    index: int
    mount: Mount
    first: str | None = None
    """The first directory below it in which the files are, or their longest common path if file names are allowed;
    empty if they have none in common; None: not known yet."""
    due_ns: int = 0
    """When the path of a file there is looked at again."""


class Mounts:
    """Finds the mount of a descriptor or a path."""

    def __init__(self, write: Callable[[str, str], object]):
        """``write`` writes a string of the ledger."""
        self._write = write
        self._files = os.environ.get("WHYIDLE_FILES") == "1"
        self._known: dict[int, Mount] = {}
        self._others: set[int] = set()  # ids that are not in mountinfo, such as those of pipes
        self._read_ns = 0
        self.used: list[Used] = []

    def of_id(self, number: int) -> Mount | None:
        if number in self._others:
            return None
        now = time.monotonic_ns()
        if number not in self._known or now - self._read_ns > _AGAIN_NS:
            self._read(now)
            if number not in self._known:
                self._others.add(number)
        return self._known.get(number)

    def _read(self, now: int) -> None:
        self._read_ns = now
        with open("/proc/self/mountinfo", "rb", buffering=0) as file:
            data = b"".join(iter(lambda: file.read(1 << 16), b""))
        try:
            self._known = mounts(data)[0]
        except Unreadable:
            self._known = {}
        self._others.clear()

    def of_path(self, path: str) -> tuple[Mount | None, str]:
        """(mount, path without symbolic links) of an absolute path, as far as the kernel has its directories in its
        caches. The rest of the path is unchanged.
        """
        folder = path
        for _ in range(_DEEP):
            folder = folder.rpartition("/")[0]
            fd = proc.cached_directory(os.fsencode(folder or "/"))
            if fd >= 0:
                try:
                    mount, real = self._of_descriptor("/proc/self", fd), proc.link(f"/proc/self/fd/{fd}")
                finally:
                    os.close(fd)
                if mount is not None:
                    return mount, real.rstrip("/") + path[len(folder) :]
            if not folder:
                break
        if not self._known:
            self._read(time.monotonic_ns())
        return mount_of(path, self._known), path

    def of_descriptor(self, folder: str, number: int) -> tuple[Mount | None, str]:
        """(mount, path) of an open file of the task whose /proc folder this is. (None, "") for a pipe or a socket.

        The path is empty unless `slot` would learn something from it.
        """
        mount = self._of_descriptor(folder, number)
        if mount is None:
            return None, ""
        used = next((used for used in self.used if used.mount == mount), None)
        now = time.monotonic_ns()
        if used is not None and (used.first == "" or now < used.due_ns):
            return mount, ""
        if used is not None:
            used.due_ns = now + _PATH_AGAIN_NS
        return mount, proc.link(f"{folder}/fd/{number}")

    def _of_descriptor(self, folder: str, number: int) -> Mount | None:
        info = proc.read_bytes(f"{folder}/fdinfo/{number}", 256)
        at = info.find(b"mnt_id:")
        try:
            return self.of_id(int(info[at + 7 :].split(maxsplit=1)[0])) if at >= 0 else None
        except (ValueError, IndexError):
            return None

    def reading(self, folder: str) -> dict[Mount, str]:
        """Mount -> the path of a file that the task has open for reading there. Costs 10 µs a descriptor."""
        found: dict[Mount, str] = {}
        for number in proc.numbers_in(f"{folder}/fd"):
            try:
                file = open_file(proc.read_bytes(f"{folder}/fdinfo/{number}", 256))
            except Unreadable:
                continue
            mount = self.of_id(file.mount) if file is not None and file.reads else None
            if mount is not None and mount.fstype not in _NO_STORAGE:
                found[mount] = proc.link(f"{folder}/fd/{number}")
        return found

    def mapped(self, sizes: dict[str, int]) -> tuple[Mount | None, str]:
        """(mount, path) of mapped files, if nearly all of what is mapped is there."""
        if not self._known:
            self._read(time.monotonic_ns())
        by_mount: dict[Mount, int] = {}
        largest: dict[Mount, str] = {}
        for path in sorted(sizes, key=sizes.__getitem__):
            mount = mount_of(path, self._known)
            if mount is not None and mount.fstype not in _NO_STORAGE:
                by_mount[mount] = by_mount.get(mount, 0) + sizes[path]
                largest[mount] = path
        most = max(by_mount, key=by_mount.__getitem__, default=None)
        if most is None or 10 * by_mount[most] < 9 * sum(by_mount.values()):
            return None, ""
        return most, largest[most]

    def slot(self, mount: Mount, path: str) -> int:
        """The place of a mount in the ledger; -1 if there is none left, or if it is not storage."""
        if mount.fstype in _NO_STORAGE:
            return -1
        used = next((used for used in self.used if used.mount == mount), None)
        if used is None:
            if len(self.used) == MOUNTS:
                return -1
            used = Used(len(self.used), mount)
            self.used.append(used)
            self._label(used)
        if path and used.first != "":
            below = path[len(mount.point.rstrip("/")) + 1 :].removesuffix(" (deleted)").split("/")
            found = "/".join(below if self._files else below[:-1][:1])
            first = found if used.first is None else common_path(used.first, found)
            if first != used.first:
                used.first = first
                self._label(used)
        return used.index

    def _label(self, used: Used) -> None:
        first = used.first or ""
        label = _label_of(used.mount, first)
        while len(label) > _LABEL_BYTES and first:
            first = first.rpartition("/")[0]  # the type and the source are needed to know the mount again
            label = _label_of(used.mount, first)
        self._write(MOUNT_LABELS[used.index], label[:_LABEL_BYTES].decode("utf-8", "ignore"))


def _label_of(mount: Mount, first: str) -> bytes:
    return mount_text(mount.point, first, mount.fstype, mount.source).encode("utf-8", "replace")


def store(peer: str) -> Mount:
    """An object store, by its address and port."""
    return Mount(peer, STORE, "", "")
