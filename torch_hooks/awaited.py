"""The thread for which the training thread waits: in `Thread.join`, or for the future of a pool of threads."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from .user_code import stack_of

_JOIN, _RESULT, _WORKS = (
    ("threading", "join"),
    ("concurrent.futures._base", "result"),
    ("concurrent.futures.thread", "run"),
)
_NEAR, _DEEPEST = 4, 200
"""How many frames are looked at: such a call is the innermost of Python's own, and a pool's is the outermost."""


def awaited_by(frame: FrameType) -> threading.Thread | None:
    """The thread that one with this frame waits for; None if that is not known. Only `self` of Python's own functions
    is read, and no frame is kept: it has the tensors of the training."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():  # variables of a thread that runs may not be read
        return None
    waits = next((one for one in stack_of(frame, _NEAR) if _name(one) in (_JOIN, _RESULT)), None)
    if waits is None:
        return None
    of = _self_of(waits)
    if of is None or _name(waits) == _JOIN:
        return of if isinstance(of, threading.Thread) else None
    frames = sys._current_frames()
    try:
        return next((one for one in threading.enumerate() if _makes(frames.get(one.ident or 0), of)), None)
    finally:
        frames.clear()  # it has the frame of this function, too


def _makes(frame: FrameType | None, future: object) -> bool:
    """Whether a thread of a pool with this frame works for a future."""
    return any(
        getattr(_self_of(one), "future", None) is future for one in stack_of(frame, _DEEPEST) if _name(one) == _WORKS
    )


def _self_of(frame: FrameType) -> object:
    known = frame.f_locals
    found = known.get("self")
    if sys.version_info < (3, 13) and frame.f_trace is None:
        known.clear()  # a copy, which would keep what the function has deleted
    return found


def _name(frame: FrameType) -> tuple[str, str]:
    return str(frame.f_globals.get("__name__")), frame.f_code.co_name
