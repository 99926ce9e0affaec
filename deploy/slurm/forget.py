"""forget.py DIR RUN: removes the ledgers of a run that is over, as the user who runs it.

Of the run and of this user only. If one of its ranks lives (the job has been requeued), all of them stay: they tell the
new attempt which steps it repeats. Never fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

from whyidle.ledger.directory import ledger_paths
from whyidle.ledger.reader import Ledger, LedgerError, read_ledger


def ledgers(directory: str, run: str) -> Iterator[Ledger]:
    with suppress(LedgerError):  # of the folder itself
        for path in ledger_paths(directory):
            with suppress(LedgerError, OSError):
                if os.lstat(path).st_uid == os.geteuid() and (ledger := read_ledger(path)).run == run:
                    yield ledger


def forget(directory: str, run: str) -> int:
    """Returns how many were removed."""
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
