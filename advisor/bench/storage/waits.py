"""Splits the waits of a loop for its batches, with the ledger of its process."""

from __future__ import annotations

from ....ledger.directory import read_directory

CAUSES: dict[str, str] = {
    "data_read": "blocked in reads",
    "data_cpu": "CPU of the worker",
    "data_queue": "no CPU for the worker",
    "data_handoff": "hand-over to the loop",
}
"""Cause of a wait for a batch -> what the worker that makes the batch does meanwhile."""


def split(directory: str, run: str) -> dict[str, float] | None:
    """The seconds by cause in a run that waits only for batches. None if the run has no ledger in the directory."""
    ledgers, _ = read_directory(directory)
    found = [ledger.cause_ns for ledger in ledgers if ledger.run == run]
    return {cause: sum(ns[cause] for ns in found) / 1e9 for cause in CAUSES} if found else None
