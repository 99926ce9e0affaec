"""Brings the file of a ledger up to date from the watcher's thread, so that a step does not have to.

The phase machine flushes, too, at a boundary: when the last flush was ``FLUSH_NS`` ago. The thread flushes about once a
second, and soon after a boundary that was not written. It also leaves a heartbeat. It is the last that a ledger knows
of a rank that was killed in a long phase.
"""

from __future__ import annotations

import time

from ..ledger.layout import WORD_AT
from ..ledger.writer import LedgerWriter
from .watcher import Probe

FLUSH_NS = 300_000_000
"""What a rank that is killed between short steps may lack in its file. A flush costs 50 to 120 µs."""
_HEARTBEAT_AT, _SINCE_AT = WORD_AT["heartbeat_ns"][0], WORD_AT["phase_since_ns"][0]


def beat(writer: LedgerWriter) -> None:
    """Leaves a sign of life and brings the file up to date."""
    writer.words[_HEARTBEAT_AT] = time.monotonic_ns()
    writer.file.flush(FLUSH_NS)


def flush_probe(writer: LedgerWriter) -> Probe:
    def urgent() -> bool:
        """Whether a phase has begun that the file does not have, and that is not a short one."""
        since = writer.words[_SINCE_AT]
        return writer.file.is_older_than(min(since, time.monotonic_ns() - FLUSH_NS))

    return Probe("flush", lambda: beat(writer), vital=True, urgent=urgent)
