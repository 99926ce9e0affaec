"""Why cells of docs/accuracy.md are wrong, where it is known."""

from __future__ import annotations

from accuracy_cells import Cell

NOTES: dict[tuple[str, str, str], str] = {}
"""(device, job, fault) -> the reason. An empty job or fault stands for all of them."""


def note(cell: Cell) -> str:
    """The reason for a cell that is wrong; empty if it is not known."""
    keys = ((cell.device, job, fault) for job in (cell.job, "") for fault in (cell.fault, ""))
    return next((NOTES[key] for key in keys if key in NOTES), "")
