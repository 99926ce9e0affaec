"""Reads files of the kernel, with a limit on their size and a reason for each value that cannot be read.

Files that are read at each scrape are kept open: ``pread`` of a sysfs attribute takes a tenth of the time of open, read
and close.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass

from ..linux.unreadable import DIGITS, U64, Unreadable, not_a_number, number, reason_of

_NO_SUCH_VALUE = "the driver does not have this value for this device; there is nothing to do"
_REPORT = "if it does not go away, report it with the content of the file or the result of the call"

REASONS: dict[str, str] = {
    "missing": "the kernel or driver is older or newer than expected; " + _REPORT,
    "denied": "run the agent as root, or give it the right to read this",
    "gone": "the device or process is gone; if it should be there, look at the kernel's log (dmesg)",
    "invalid": _NO_SUCH_VALUE,  # EINVAL: from drivers, for counters that the hardware does not have
    "unsupported": _NO_SUCH_VALUE,  # EOPNOTSUPP, N/A, or a counter without a value
    "io": "the device may be failing: look at the kernel's log (dmesg)",  # any other OSError
    "empty": _REPORT,
    "garbage": _REPORT,  # the content cannot be parsed
    "huge": _REPORT,  # longer than the limit for such a file
    "hung": "the server or device behind it does not answer",
    "unavailable": "the kubelet does not answer: is it running, and its pod-resources socket mounted?",
}
"""Why a value could not be read (the label ``reason``) -> what to do."""

ATTRIBUTE_BYTES = 4096
"""The maximum length of a sysfs attribute: one page."""
TEXT_BYTES = 4 << 20
"""The limit for files of /proc. mountstats with thousands of mounts is smaller."""
_TICK_NS = 50_000_000
"""The kernel takes the time of a change from its clock tick, so two changes within 1 to 10 ms have the same time."""
LISTING_SECONDS = 30.0
"""How long a directory's listing is reused while its modification time stays the same. sysfs may not update that time.
"""
KEPT_FILES = 4096
_CHUNK = 1 << 16
_NUMBER_BYTES = 64
"""More than the digits of any 64-bit number. A file with more bytes than this is not a number."""


@dataclass(frozen=True, slots=True)
class Roots:
    """The paths of the node's /proc, /sys and /. In a container, the paths where they are mounted."""

    procfs: str = "/proc"
    sysfs: str = "/sys"
    rootfs: str = "/"


def word(data: bytes) -> str:
    """The single line of text in an attribute, fit to be the value of a label. Raises Unreadable."""
    text = data.strip(b"\0 \t\r\n")
    if not text:
        raise Unreadable("empty")
    if text[:3] == b"N/A":
        raise Unreadable("unsupported")
    try:
        line = text.decode()
    except UnicodeDecodeError:
        raise Unreadable("garbage") from None
    if not line.isprintable() or len(line) > 256:
        raise Unreadable("garbage")
    return line


def read(path: str, limit: int = TEXT_BYTES) -> bytes:
    """The content of a file that is read once or rarely. Raises Unreadable."""
    fd = _open(path)
    try:
        return _read_all(fd, path, limit)
    finally:
        os.close(fd)


def read_once(path: str, limit: int = ATTRIBUTE_BYTES) -> bytes:
    """The content of a short file without pread, such as fusectl's (nonseekable_open). Raises Unreadable."""
    fd = _open(path)
    try:
        data = os.read(fd, limit + 1)
    except OSError as error:
        raise Unreadable(reason_of(error), path) from error
    finally:
        os.close(fd)
    if len(data) > limit:
        raise Unreadable("huge", path)
    return data


def names(path: str) -> list[str]:
    """The names in a directory, sorted. Raises Unreadable."""
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise Unreadable(reason_of(error), path) from error


def _open(path: str) -> int:
    try:
        # O_NONBLOCK: opening a FIFO would block otherwise.
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable(reason_of(error), path) from error
    except ValueError:  # a NUL in the path
        raise Unreadable("missing", path) from None


def _read_all(fd: int, path: str, limit: int) -> bytes:
    """Reads until a read returns nothing: a short read of a /proc file does not mean its end."""
    pieces, length = [], 0
    try:
        while piece := os.pread(fd, _CHUNK, length):
            pieces.append(piece)
            length += len(piece)
            if length > limit:
                raise Unreadable("huge", path)
    except OSError as error:
        raise Unreadable(reason_of(error), path) from error
    return b"".join(pieces)


class KeptFiles:
    """The files of one collector, kept open between scrapes. Not thread-safe.

    If a read fails, the file is closed, and the next read opens it again.
    """

    def __init__(self, most: int = KEPT_FILES):
        self._most = most
        self._fds: dict[str, int] = {}
        self._listings: dict[str, tuple[tuple[int, int, int] | None, float, tuple[str, ...]]] = {}

    def attribute(self, path: str) -> bytes:
        """The content of a file of at most one page that a single read returns, such as sysfs's. Raises Unreadable."""
        try:
            data = os.pread(self._fds[path], ATTRIBUTE_BYTES + 1, 0)
        except KeyError:
            return self._first(path, ATTRIBUTE_BYTES)
        except OSError as error:
            self.drop(path)
            raise Unreadable(reason_of(error), path) from error
        if len(data) > ATTRIBUTE_BYTES:
            raise Unreadable("huge", path)
        return data

    def number(self, path: str) -> int:
        """The unsigned integer in an attribute. Raises Unreadable. Optimised: a scrape reads hundreds of them."""
        fd = self._fds.get(path)
        if fd is None:
            return number(self._first(path, ATTRIBUTE_BYTES))
        try:
            data = os.pread(fd, _NUMBER_BYTES, 0).strip()
        except OSError as error:
            self.drop(path)
            raise Unreadable(reason_of(error), path) from error
        if len(data) <= DIGITS and data.isdigit() and (value := int(data)) < U64:
            return value
        raise Unreadable(not_a_number(data), path)

    def text(self, path: str, limit: int = TEXT_BYTES) -> bytes:
        """The content of a file that may be long, such as those of /proc. Raises Unreadable."""
        fd = self._fds.get(path)
        if fd is None:
            return self._first(path, limit)
        try:
            return _read_all(fd, path, limit)
        except Unreadable:
            self.drop(path)
            raise

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted. Raises Unreadable.

        If the directory has changed, all kept files below it are closed, because their names may be gone.
        """
        now = time.monotonic()
        try:
            status = os.stat(path)
        except OSError as error:
            self.drop_below(path)
            raise Unreadable(reason_of(error), path) from error
        mark = (status.st_dev, status.st_ino, status.st_mtime_ns)
        known = self._listings.get(path)
        if known and known[0] == mark and now - known[1] < LISTING_SECONDS:
            return known[2]
        settled = status.st_mtime_ns < time.time_ns() - _TICK_NS  # otherwise another change may have the same time
        found = tuple(names(path))
        if known and (known[0] != mark or known[2] != found):
            self.drop_below(path)
        self._listings[path] = (mark if settled else None, now, found)
        return found

    def drop(self, path: str) -> None:
        """Closes a file that will not be read again."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def drop_below(self, path: str) -> None:
        """Closes all kept files below a directory, and forgets its listings."""
        prefix = path + "/"
        for kept in [kept for kept in self._fds if kept.startswith(prefix)]:
            self.drop(kept)
        for listed in [listed for listed in self._listings if listed == path or listed.startswith(prefix)]:
            del self._listings[listed]

    def close(self) -> None:
        for path in list(self._fds):
            self.drop(path)
        self._listings.clear()

    def __del__(self) -> None:
        self.close()

    def _first(self, path: str, limit: int) -> bytes:
        fd = _open(path)
        keep = False
        try:
            data = _read_all(fd, path, limit)
            keep = len(self._fds) < self._most
        finally:
            if keep:
                self._fds[path] = fd
            else:
                os.close(fd)
        return data


def raise_file_limit() -> None:
    """Raises this process's limit of open files as far as it is allowed: eight adapters have about 500 counters."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = KEPT_FILES * 4 if hard == resource.RLIM_INFINITY else min(hard, KEPT_FILES * 4)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
