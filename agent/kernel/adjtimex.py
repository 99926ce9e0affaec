"""Calls adjtimex(2), which Python does not wrap. Reading (modes 0) needs no privilege."""

from __future__ import annotations

import ctypes
import os

from ..parsers.timex import BYTES


def adjtimex() -> tuple[int, bytes]:
    """The clock's state and the ``struct timex``. Raises OSError, or AttributeError if libc has no such function."""
    call = ctypes.CDLL(None, use_errno=True).adjtimex
    buffer = ctypes.create_string_buffer(BYTES)  # all zero, so modes is 0
    state = call(buffer)
    if state < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return state, buffer.raw
