"""The exception that ended a rank, as its ledger keeps it: `TYPE REASON FILE:LINE FUNCTION`. Never its message.

The reason is one of REASONS, or `-`. The place is in the training's own code; `-` if there is none.
"""

from __future__ import annotations

from typing import NamedTuple

FAILURE_BYTES = 160

REASONS: tuple[str, ...] = ("gpu-memory", "memory", "shm", "space", "files", "write")
"""What was used up: the memory of the GPU, that of the node or the group, /dev/shm, a file system, or descriptors.
Or a file could not be written, and it is not known why."""


class Failure(NamedTuple):
    type: str
    reason: str
    """One of REASONS; empty: another one."""
    place: str
    """As `train.py:31 step`; empty: not known."""


def stored(failure: Failure) -> str:
    return f"{failure.type} {failure.reason or '-'} {failure.place or '-'}"


def failure_of(text: str) -> Failure | None:
    """None if the text is empty or invalid."""
    name, _, rest = text.partition(" ")
    reason, _, place = rest.partition(" ")
    if not place or reason not in (*REASONS, "-"):
        return None
    return Failure(name, "" if reason == "-" else reason, "" if place == "-" else place)
