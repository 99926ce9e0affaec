"""The exception that ends a rank: its type, what was used up, and the line of the training's own code.

The message of an exception may contain the user's data. It is only compared with the texts below. From the traceback of
a data worker, which torch puts into a message, a file, a line and a function are taken.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress

from ..ledger.failures import Failure, stored
from .user_code import Place, innermost, innermost_in

_TYPE_LENGTH = 64
_RERAISES = os.path.join("torch", "_utils.py")
_MOST = 1 << 16
"""The most characters of a message that are looked at."""
_NUMBERS = {errno.EMFILE: "files", errno.ENFILE: "files", errno.ENOSPC: "space", errno.ENOMEM: "memory"}
_TEXTS = {os.strerror(number): reason for number, reason in _NUMBERS.items()}
_OF_TORCH = re.compile("|".join(map(re.escape, _TEXTS)))
"""torch puts the text of errno into a RuntimeError (torch/csrc/.../MapAllocator.cpp, c10/core/impl/alloc_cpu.cpp)."""
_GPU = re.compile(r"(CUDA|HIP|XPU)( error:)? out of memory", re.IGNORECASE)
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
    if type(error).__name__ == "OutOfMemoryError":  # torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
        return "gpu-memory"
    if isinstance(error, MemoryError):
        return "memory"
    message = str(error)[:4096] if isinstance(error, (OSError, RuntimeError)) else ""
    if isinstance(error, RuntimeError) and _GPU.search(message):
        return "gpu-memory"
    if _OF_WORKERS in message:
        return "shm"
    found = _OF_TORCH.search(message)
    reason = _NUMBERS.get(getattr(error, "errno", None) or 0) or (_TEXTS[found[0]] if found else "")
    return "shm" if reason == "space" and _SHM.search(message) else reason
