"""Brings the file of a ledger up to date from the watcher's thread, so that a step does not have to.

If that thread gets no chance to run, the phase machine flushes at a boundary: when the last flush was ``FLUSH_NS`` ago.
"""

from __future__ import annotations

from ..ledger.file import LedgerFile
from .watcher import Probe

SECONDS = 0.1
FLUSH_NS = 150_000_000


def flush_probe(file: LedgerFile) -> Probe:
    return Probe("flush", file.flush, lambda: SECONDS, vital=True)
