"""Splits the waits of a loop for its batches and its workers, with the ledger of its process."""

from __future__ import annotations

from ....ledger.directory import read_directory

CAUSES: dict[str, str] = {
    "data_read": "blocked in reads",
    "data_cpu": "CPU of the worker",
    "data_queue": "no CPU for the worker",
    "data_handoff": "hand-over to the loop",
    "data_start": "start and end of workers",
}
"""Cause of a wait of the loop -> what its workers do meanwhile."""


def split(directory: str, run: str) -> dict[str, float] | None:
    """The seconds by cause in a run that only loads data. None if the run has no ledger in the directory."""
    ledgers, _ = read_directory(directory)
    found = [ledger.cause_ns for ledger in ledgers if ledger.run == run]
    return {cause: sum(ns[cause] for ns in found) / 1e9 for cause in CAUSES} if found else None
