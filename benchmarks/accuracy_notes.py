"""Why cells of docs/accuracy.md are wrong, where it is known."""

from __future__ import annotations

from accuracy_cells import CPU, CUDA, CUDA_NAMES, SIMULATED, Cell
from cudastandin.cases import CASES as CUDA_CASES

_SHORT = "the run lasts one to three seconds, and idle time inside compute is known after five"
NOTES: dict[tuple[str, str, str], str] = {
    (CPU, "1f1b", "nothing"): "four ranks share two cores: also by their own clocks, stages wait without a fault",
    (SIMULATED, "", "none"): _SHORT,
    (SIMULATED, "", "hidden"): _SHORT,
}
"""(device, job, fault) -> the reason. An empty job or fault stands for all of them."""


def note(cell: Cell) -> str:
    """The reason for a cell that is wrong; empty if it is not known. Cases on the stand-in have theirs in a table."""
    keys = ((cell.device, job, fault) for job in (cell.job, "") for fault in (cell.fault, ""))
    of_case = CUDA_CASES[CUDA_NAMES[cell.job, cell.fault]].limit if cell.device == CUDA else ""
    return next((NOTES[key] for key in keys if key in NOTES), of_case)
