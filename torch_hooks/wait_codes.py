"""What is open while a rank waits: the phase `collective`, with the slot of its group and the rank at its other end.

A code stands where a phase stands, so that it travels with an interval through the phase machine and the device clock.
"""

from __future__ import annotations

from ..ledger.causes import PHASE
from ..ledger.layout import UNKNOWN_SLOT

WaitCode = int
"""Bits 0-7 the phase, 8-10 the slot (see groups.py), then `_WAIT`, `CONTINUES`, and from bit 13 the peer + 1."""

_COLLECTIVE = PHASE["collective"]
_WAIT = 1 << 11
CONTINUES = 1 << 12
"""The interval goes on with a wait that something else, a garbage collection say, has cut in two."""
_PEER_SHIFT = 13

PHASE_MASK = 0xFF
LEAST = _WAIT
"""Every code is at least this; every phase is less."""


def wait_code(slot: int, peer: int = -1) -> WaitCode:
    """``peer`` is the global rank at the other end of a send or receive."""
    return _COLLECTIVE | slot << 8 | _WAIT | (peer + 1) << _PEER_SHIFT


def slot_of(code: WaitCode) -> int:
    return code >> 8 & 7


def peer_of(code: WaitCode) -> int:
    """-1 where there is none, or it is not known."""
    return (code >> _PEER_SHIFT) - 1


UNKNOWN_WAIT = wait_code(UNKNOWN_SLOT)


class Issue:
    """A send or receive that was issued."""

    __slots__ = ("at", "peer", "sent")

    def __init__(self, peer: int, sent: bool, at: int = 0):
        self.peer = peer
        """The global rank at its other end; -1 where it is not known."""
        self.sent = sent
        self.at = at
        """ns of CLOCK_MONOTONIC; on an accelerator when the device came there, 0 until it has."""


Issues = tuple[Issue, ...]
"""What is waited for at once: several where sends and receives were issued as one."""
