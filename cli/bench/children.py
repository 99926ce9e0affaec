"""Ends child processes when their parent ends, for whatever reason (PR_SET_PDEATHSIG, prctl(2))."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """For ``preexec_fn``: the child gets the signal ``number`` when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def die_with_parent_alone() -> None:
    """The same, in a separate process group, so that Ctrl-C reaches only the parent."""
    os.setpgid(0, 0)
    die_with_parent()
