"""The device-seconds of a rank by cause, as they are exported and billed. A pure function of one ledger.

It needs no memory: an agent that restarts computes the same.
"""

from __future__ import annotations

from ..ledger.causes import CAUSE, PHASE_CAUSE
from ..ledger.reader import Ledger
from .hang import open_blocked


def device_ns(ledger: Ledger) -> tuple[int, ...]:
    """Cumulative ns by cause, in the order of `CAUSES`.

    A rank that was killed could not book its last phase, nor split its last waits. So they are added as in the report,
    up to its last sign of life. Nothing is added beyond the time since the start of its process.
    """
    spent = ledger.words["cause_ns"]
    if ledger.alive or ledger.ended:
        return spent
    phase, since_ns, _ = ledger.position
    until_ns = max(ledger.until_ns, ledger.start_ns)
    since_ns = max(since_ns, until_ns)
    opened = max(0, ledger.last_sign_ns - since_ns)
    blocked = round(1e9 * open_blocked(ledger, opened / 1e9))
    found = list(spent)
    found[CAUSE["collective"]] += min(ledger.pending_ns, max(0, until_ns - ledger.start_ns - sum(spent)))
    found[CAUSE["unattributed"]] += max(0, min(since_ns, ledger.last_sign_ns) - until_ns)
    found[CAUSE["host_blocked"]] += blocked
    found[CAUSE["unattributed" if phase == "data" else PHASE_CAUSE[phase]]] += opened - blocked
    return tuple(found)
