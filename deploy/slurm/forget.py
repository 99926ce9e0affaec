"""forget.py DIR RUN: removes the ledgers of a run that has ended, but only those of the current user.

If a rank of the run is alive (the job has been requeued), it removes none: from the ledgers the new attempt knows which
steps it repeats. Never fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

from whyidle.ledger.directory import ledger_paths
from whyidle.ledger.reader import Ledger, LedgerError, read_ledger


def ledgers(directory: str, run: str) -> Iterator[Ledger]:
    with suppress(LedgerError):  # the folder cannot be read
        for path in ledger_paths(directory):
            with suppress(LedgerError, OSError):
                if os.lstat(path).st_uid == os.geteuid() and (ledger := read_ledger(path)).run == run:
                    yield ledger


def forget(directory: str, run: str) -> int:
    """Removes the ledgers of a run. Returns how many were removed."""
    found = list(ledgers(directory, run))
    if any(ledger.alive for ledger in found):
        return 0
    removed = 0
    for ledger in found:
        with suppress(OSError):
            os.unlink(ledger.path)
            removed += 1
    return removed


if __name__ == "__main__":
    forget(*sys.argv[1:3])
