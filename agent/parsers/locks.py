"""/proc/locks: the processes that hold locks on files.

Format: proc_locks(5), and `lock_get_status` in the kernel's fs/locks.c.
"""

from __future__ import annotations

import re

_POSIX_WRITE = re.compile(
    rb"^\d+: POSIX +\S+ +WRITE (\d{1,10}) ([0-9a-f]{2,}):([0-9a-f]{2,}):(\d{1,20}) ", re.MULTILINE
)

File = tuple[int, int, int]  # major, minor, inode


def holders(data: bytes) -> dict[File, int]:
    """File -> pid that holds a POSIX write lock on it.

    The kernel lists only pids that are visible in this procfs. Other locks, and processes that wait for a lock, are
    ignored.
    """
    return {(int(at[2], 16), int(at[3], 16), int(at[4])): int(at[1]) for at in _POSIX_WRITE.finditer(data)}
