"""How the waits of a loop for its batches split, from the ledger that its process left."""

from __future__ import annotations

from ....ledger.directory import read_directory

CAUSES: dict[str, str] = {
    "data_read": "blocked in reads",
    "data_cpu": "CPU of the worker",
    "data_queue": "no CPU for the worker",
    "data_handoff": "hand-over to the loop",
}
"""Of a wait for a batch -> what it is, of the worker that owes the batch."""


def split(directory: str, run: str) -> dict[str, float] | None:
    """Seconds by cause in a run that waits for nothing but batches; None where there is no ledger of it."""
    ledgers, _ = read_directory(directory)
    found = [ledger.cause_ns for ledger in ledgers if ledger.run == run]
    return {cause: sum(ns[cause] for ns in found) / 1e9 for cause in CAUSES} if found else None
