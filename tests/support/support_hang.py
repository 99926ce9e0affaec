"""A file system that never answers, like a hard NFS mount without its server: a FUSE whose daemon reads no requests."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_MNT_DETACH = 2


@contextlib.contextmanager
def hung_mount(point: Path) -> Iterator[None]:
    """Inside the block, every process that uses the file system at ``point`` waits.

    Raises OSError if this process may not mount: it needs root and /dev/fuse.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    mounted = False
    try:
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"hung", os.fsencode(point), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount")
        mounted = True
        yield
    finally:
        os.close(device)  # waiting processes get ENOTCONN
        if mounted:
            libc.umount2(os.fsencode(point), _MNT_DETACH)


def may_mount(point: Path) -> bool:
    """Whether this process may create such a mount."""
    try:
        with hung_mount(point):
            return True
    except OSError:
        return False
