"""What a rank's ledger says about other threads of its process, while the training thread waits for a long time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

RAISED, ENDED, RUNS = "raised", "ended", "runs"
"""An exception has ended it; it has ended; it is at a place in the training's own code."""
_KINDS = (RAISED, ENDED, RUNS)
AWAITS_ITEMS = ("queue", "concurrent", "multiprocessing")
AWAITS_THREADS = (*AWAITS_ITEMS, "threading")
"""Packages of the standard library in which a thread waits for what others make, or for other threads."""


class Other(NamedTuple):
    """A thread that the program has started with ``threading``."""

    kind: str
    type: str
    """Of the exception that has ended it; empty: none."""
    place: str
    """As `train.py:31 produce`; empty: not known."""
    name: str


def stored(threads: Iterable[Other], room: int) -> str:
    """The first ones of them that fit into ``room`` bytes."""
    text = ""
    for one in threads:
        added = "/".join(part.replace("|", " ") for part in one) + "|"
        if len((text + added).encode("utf-8", "replace")) > room:
            break
        text += added
    return text


def threads_of(text: str) -> list[Other]:
    """Those of a ledger. What is not valid is left out."""
    found = [Other(*parts) for one in text.split("|") if len(parts := one.split("/", 3)) == len(Other._fields)]
    return [one for one in found if one.kind in _KINDS and one.name]
