"""Codes of waits: the phase `collective`, with the slot of the group and the rank at the other end.

A code is used in place of a phase, so that it stays with its interval in the phase machine and the device clock.
"""

from __future__ import annotations

from ..ledger.causes import PHASE
from ..ledger.layout import SLOTS, UNKNOWN_SLOT

WaitCode = int
"""Bits 0-7: the phase; 8-10: the slot (see groups.py); 11: `_WAIT`; 12: `CONTINUES`; from bit 13: the peer + 1, or the
number of the group."""

_COLLECTIVE = PHASE["collective"]
_WAIT = 1 << 11
CONTINUES = 1 << 12
"""The interval continues a wait that was interrupted, for example by a garbage collection."""
PEER_SHIFT = 13

PHASE_MASK = 0xFF
LEAST = _WAIT
"""Every code is at least this; every phase is less."""


NOT_ENTERED = -1
"""Instead of a code: nobody waits. `PhaseMachine.enter` returns it if it has entered nothing."""


def wait_code(slot: int, peer: int = -1) -> WaitCode:
    """The code of a wait. ``peer``: the global rank at the other end of a send or receive."""
    return _COLLECTIVE | slot << 8 | _WAIT | (peer + 1) << PEER_SHIFT


def numbered(slot: int, number: int) -> WaitCode:
    """The code of a wait in a collective. ``number``: which of the groups that share the slot; see groups.py."""
    return wait_code(slot, number - 1)


def slot_of(code: WaitCode) -> int:
    return code >> 8 & 7


def peer_of(code: WaitCode) -> int:
    """The global rank at the other end; -1 if there is none or it is not known."""
    return (code >> PEER_SHIFT) - 1


WITHOUT_PEER = tuple(wait_code(slot) for slot in range(SLOTS))
"""The code of a wait in each slot, if it has no peer."""
UNKNOWN_WAIT = WITHOUT_PEER[UNKNOWN_SLOT]

FIRST_WAIT = wait_code(UNKNOWN_SLOT, (1 << 20) - 2)
"""The code of the first wait in a group that the loop has just made: it waits for connections, not for other ranks."""


class Issue:
    """A send or receive that was issued."""

    __slots__ = ("at", "peer", "sent")

    def __init__(self, peer: int, sent: bool, at: int = 0):
        self.peer = peer
        """The global rank at the other end; -1 if it is not known."""
        self.sent = sent
        self.at = at
        """When it was issued, ns of CLOCK_MONOTONIC. On an accelerator, when the device reached it; 0 until then."""


Issues = tuple[Issue, ...]
"""The sends and receives that one wait waits for. There are several if they were issued as one."""
