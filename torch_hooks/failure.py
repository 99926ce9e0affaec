"""The exception that ends a rank: its type, what was used up, and the line of the training's own code.

The message of an exception may contain the user's data. It is only compared with the texts below. From the traceback of
a data worker, which torch puts into a message, a file, a line and a function are taken.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress

from ..ledger.failures import Failure, stored
from .user_code import Place, innermost, innermost_in, places

_TYPE_LENGTH = 64
_RERAISES = os.path.join("torch", "_utils.py")
_MOST = 1 << 16
"""The most characters of a message that are looked at."""
_NUMBERS = {errno.EMFILE: "files", errno.ENFILE: "files", errno.ENOSPC: "space", errno.ENOMEM: "memory"}
_TEXTS = {os.strerror(number): reason for number, reason in _NUMBERS.items()}
_OF_TORCH = re.compile("|".join(map(re.escape, _TEXTS)))
"""torch puts the text of errno into a RuntimeError (torch/csrc/.../MapAllocator.cpp, c10/core/impl/alloc_cpu.cpp)."""
_TRUNCATED = re.compile(r"received \d+ items of ancdata")
"""Python says so if descriptors that were sent to this process are too many for it (multiprocessing/reduction.py)."""
_GPU = re.compile(r"(CUDA|HIP|XPU)( error:)? out of memory", re.IGNORECASE)
_WRITING = re.compile(r"PytorchStreamWriter failed writing|inline_container.*unexpected pos")
"""torch says so if a part of a save could not be written, and not why (caffe2/serialize/inline_container.cc)."""
_SHM = re.compile(r"shared memory|</torch_|/dev/shm")
_OF_WORKERS = "out of shared memory"
"""torch says so of a data worker that a bus error has killed (torch/utils/data/_utils/signal_handling.py)."""


def described(error: BaseException | None, with_place: bool) -> str:
    """As `failure_of` reads it; empty if there is no exception. An exit with a status counts by what it handled. Never
    raises."""
    try:
        return _described(error, with_place)
    except Exception:  # the fence around the training: its exception may have no text
        return ""


def exited(status: int, error: BaseException | None, with_place: bool) -> str:
    """The same for a process that ``os._exit`` ends. ``error``: what the calling thread handles. Without one, the place
    is that of the call. Never raises."""
    try:
        place = next(places(sys._getframe()), "") if with_place else ""
        return _described(error, with_place) or stored(Failure(f"os._exit({status})", "", str(place)))
    except Exception:  # the fence around the training
        return ""


def _described(error: BaseException | None, with_place: bool) -> str:
    while isinstance(error, SystemExit):
        error = error.__context__
    if error is None:
        return ""
    place = _place(error) if with_place else None
    module, name = type(error).__module__, type(error).__qualname__
    full = name if module in ("builtins", "__main__") else f"{module.partition('.')[0]}.{name}"
    return stored(Failure(full.replace(" ", "")[:_TYPE_LENGTH], _reason(error), str(place or "")))


def _place(error: BaseException) -> Place | None:
    """An exception in a data worker has its place there: torch raises it again, with the worker's traceback as text."""
    trace, last = error.__traceback__, None
    while trace is not None:
        trace, last = trace.tb_next, trace.tb_frame.f_code
    again = last is not None and last.co_name == "reraise" and last.co_filename.endswith(_RERAISES)
    with suppress(Exception):  # the fence around the training: its exception may have no text
        if again and (there := innermost_in(str(error)[:_MOST])) is not None:
            return there
    return innermost(error.__traceback__)


def _reason(error: BaseException) -> str:
    """If a save fails, torch ends its file, and that fails, too: the reason is in the exception before."""
    found = _reason_of(error)
    if found or not (isinstance(error, RuntimeError) and _WRITING.search(str(error)[:4096])):
        return found
    return (_reason_of(error.__context__) if error.__context__ is not None else "") or "write"


def _reason_of(error: BaseException) -> str:
    if type(error).__name__ == "OutOfMemoryError":  # torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
        return "gpu-memory"
    if isinstance(error, MemoryError):
        return "memory"
    message = str(error)[:4096] if isinstance(error, (OSError, RuntimeError)) else ""
    if isinstance(error, RuntimeError) and _GPU.search(message):
        return "gpu-memory"
    if _OF_WORKERS in message:
        return "shm"
    if _TRUNCATED.match(message):
        return "files"
    found = _OF_TORCH.search(message)
    reason = _NUMBERS.get(getattr(error, "errno", None) or 0) or (_TEXTS[found[0]] if found else "")
    return "shm" if reason == "space" and _SHM.search(message) else reason
