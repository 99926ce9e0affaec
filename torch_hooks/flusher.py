"""Brings the file of a ledger up to date from the watcher's thread, so that a step does not have to.

If that thread gets no chance to run, the phase machine flushes at a boundary: when the last flush was ``FLUSH_NS`` ago.
The thread flushes about twice a second. It also leaves a heartbeat. It is the last that a ledger knows of a rank that
was killed in a long phase.
"""

from __future__ import annotations

import time

from ..ledger.layout import WORD_AT
from ..ledger.writer import LedgerWriter
from .watcher import Probe

FLUSH_NS = 1_500_000_000
"""Longer than the longest period of the watcher."""
_HEARTBEAT_AT = WORD_AT["heartbeat_ns"][0]


def beat(writer: LedgerWriter) -> None:
    """Leaves a sign of life and brings the file up to date."""
    writer.words[_HEARTBEAT_AT] = time.monotonic_ns()
    writer.file.flush()


def flush_probe(writer: LedgerWriter) -> Probe:
    return Probe("flush", lambda: beat(writer), vital=True)
