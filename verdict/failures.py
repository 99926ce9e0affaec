"""What is said about the exception that ended a rank. Pure functions."""

from __future__ import annotations

from ..ledger.failures import failure_of
from ..ledger.reader import Ledger
from .out_of_memory import size

LARGER_SHM = "`docker run --shm-size` or an `emptyDir` with `medium: Memory` make it larger"
"""About /dev/shm. Programs that put batches into shared memory are killed by SIGBUS when it is full."""

_SAID = {
    "gpu-memory": "the memory of the GPU was full",
    "memory": "memory could not be allocated",
    "space": "a file system was full",
    "write": "a file could not be written: is its file system full, or over a quota?",
    "files": "too many open files: `ulimit -n` allows more, and"
    " `torch.multiprocessing.set_sharing_strategy('file_system')` needs fewer",
}


def sentence(ledger: Ledger) -> str:
    """What follows `ended with an error`, as `: torch.OutOfMemoryError at train.py:31 step (…)`; empty: not known."""
    failure = failure_of(ledger.strings["failure"])
    if failure is None:
        return ""
    said = _SAID.get(failure.reason, "")
    if failure.reason == "shm":
        of = f" of {size(ledger.shm_bytes)}" if ledger.shm_bytes else ""
        said = f"/dev/shm{of} was full: {LARGER_SHM}"
    return f": {failure.type}{f' at {failure.place}' if failure.place else ''}{f' ({said})' if said else ''}"


def reason(ledger: Ledger) -> str:
    """What was used up, as one of REASONS; empty: nothing, or not known."""
    failure = failure_of(ledger.strings["failure"])
    return failure.reason if failure is not None else ""
