"""Snapshots of a rank's sums over its whole life: at most MOST of them, evenly spaced, at ends of steps.

When there are MOST, every second one is dropped and the distance between them doubles. So a report can tell how steps
have changed since the start, and the ledger keeps its size.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .causes import CAUSE, CAUSES, OUTSIDE_CAUSES, WAIT_CAUSES

MOST = 64
SPACING_NS = 1_000_000_000
"""The first distance between two snapshots."""
SNAPSHOT_WORDS = (
    *("end_ns", "steps", "samples", "memory_bytes", "device_bytes", "waited_ns"),
    *CAUSES,
    "end_again",  # end_ns once more: an entry that was read while it was written differs
)
"""The words of an entry. `end_ns` is CLOCK_MONOTONIC, the others are cumulative, but for the two sizes of memory."""
ENTRY = struct.Struct(f"<{len(SNAPSHOT_WORDS)}q")
_COLLECTIVE = CAUSE["collective"]
_WAITS = [CAUSE[cause] for cause in WAIT_CAUSES]
_OUTSIDE = [CAUSE[cause] for cause in OUTSIDE_CAUSES]


class Snapshot(NamedTuple):
    """The sums at the end of a step, or a difference of two. Times in ns."""

    end_ns: int
    steps: int
    samples: int
    memory_bytes: int
    """Resident memory of the process; 0: not known."""
    device_bytes: int
    """What tensors take on the device; 0: not known."""
    causes: tuple[int, ...]
    """In the order of CAUSES, with all waits under `collective`."""


def snapshots_of(raw: bytes, at: int, least_ns: int, most_ns: int, shift: int = 0) -> list[Snapshot]:
    """The snapshots of a ledger, oldest first. ``at``: byte offset of the first. Leaves out entries that are not valid:
    torn ones, those outside of ``least_ns`` to ``most_ns``, and those with fewer steps than the one before.

    ``shift`` moves their ends to the reader's clock.
    """
    found: list[Snapshot] = []
    for end_ns, steps, samples, memory, device, waited, *causes, again in ENTRY.iter_unpack(
        raw[at : at + MOST * ENTRY.size]
    ):
        if end_ns != again or not least_ns <= end_ns <= most_ns or min(steps, samples, memory, device, waited) < 0:
            continue
        if min(causes) < 0 or (found and (end_ns <= found[-1].end_ns - shift or steps <= found[-1].steps)):
            continue
        for cause in _WAITS:
            causes[cause] = 0
        causes[_COLLECTIVE] = waited
        found.append(Snapshot(end_ns + shift, steps, samples, memory, device, tuple(causes)))
    return found


def leave_out(causes: list[int]) -> int:
    """Sets the causes that are outside the loop to 0. Returns how many ns they had."""
    outside = 0
    for cause in _OUTSIDE:
        outside += max(0, causes[cause])
        causes[cause] = 0
    return outside


def grown(before: Snapshot, after: Snapshot) -> Snapshot:
    """What lies between two snapshots: differences, without time outside the loop, and the memory at the end."""
    causes = [new - old for old, new in zip(before.causes, after.causes, strict=True)]
    outside = leave_out(causes)
    return Snapshot(
        max(0, after.end_ns - before.end_ns - outside),
        after.steps - before.steps,
        after.samples - before.samples,
        after.memory_bytes,
        after.device_bytes,
        tuple(causes),
    )
