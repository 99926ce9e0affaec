"""The error for a value that could not be read, and the reason. The plainest of values: a number."""

from __future__ import annotations

import errno

_REASON_OF_ERRNO: dict[int, str] = {
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.ENODEV: "gone",
    errno.ENXIO: "gone",
    errno.ESTALE: "gone",
    errno.ESRCH: "gone",  # a process that ended, under /proc
    errno.EINVAL: "invalid",
    errno.EOPNOTSUPP: "unsupported",
    errno.EAFNOSUPPORT: "unsupported",  # a sandbox forbids this kind of socket
}

U64 = 1 << 64
DIGITS = 20  # of the largest 64-bit number; Python refuses to convert thousands of digits


class Unreadable(Exception):
    """A value that could not be read, with one of the reasons in agent/files.py."""

    def __init__(self, reason: str, what: str = ""):
        super().__init__(f"{what}: {reason}" if what else reason)
        self.reason = reason


def reason_of(error: OSError) -> str:
    """The reason, as in agent/files.py, for an error of the operating system."""
    return _REASON_OF_ERRNO.get(error.errno or 0, "io")


def number(data: bytes) -> int:
    """Parses the unsigned 64-bit integer in the file of a counter. Raises Unreadable."""
    data = data.strip()
    if len(data) <= DIGITS and data.isdigit() and (value := int(data)) < U64:
        return value
    raise Unreadable(not_a_number(data))


def not_a_number(data: bytes) -> str:
    """The reason why data is not a number."""
    if not data:
        return "empty"
    return "unsupported" if data[:3] == b"N/A" else "garbage"
