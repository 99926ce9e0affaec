"""Processes that end when the one that started them does, however that ends (PR_SET_PDEATHSIG, prctl(2))."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """For ``preexec_fn``. ``number`` is how it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def die_with_parent_alone() -> None:
    """The same, out of reach of Ctrl-C: the parent decides what that means."""
    os.setpgid(0, 0)
    die_with_parent()
