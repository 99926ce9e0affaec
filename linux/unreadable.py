"""The error for a value that could not be read, and the reason."""

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
}


class Unreadable(Exception):
    """A value that could not be read, with one of the reasons in agent/files.py."""

    def __init__(self, reason: str, what: str = ""):
        super().__init__(f"{what}: {reason}" if what else reason)
        self.reason = reason


def reason_of(error: OSError) -> str:
    """The reason, as in agent/files.py, for an error of the operating system."""
    return _REASON_OF_ERRNO.get(error.errno or 0, "io")
