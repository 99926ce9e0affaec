"""Named pipes: the link of an open one in /proc is a path, like that of a file."""

from __future__ import annotations

import stat
import sys

_AT_FDCWD, _DONT_SYNC, _TYPE = -100, 0x4000, 1  # include/uapi/linux/fcntl.h and stat.h
_MODE_AT, _BYTES = 28, 256  # of struct statx

try:
    import ctypes

    _statx = ctypes.PyDLL(None).statx  # a PyDLL keeps Python's lock: the kernel answers at once
    _statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)

    def is_fifo(path: str) -> bool:
        """Whether this link of /proc refers to a named pipe, as far as the kernel knows without asking a file server
        (statx(2), AT_STATX_DONT_SYNC)."""
        found = ctypes.create_string_buffer(_BYTES)
        if _statx(_AT_FDCWD, path.encode(), _DONT_SYNC, _TYPE, found):
            return False
        return stat.S_ISFIFO(int.from_bytes(found.raw[_MODE_AT : _MODE_AT + 2], sys.byteorder))

except (ImportError, AttributeError, OSError):  # this Python has no ctypes, or its C library is older than glibc 2.28

    def is_fifo(path: str) -> bool:
        """Not known."""
        return False
