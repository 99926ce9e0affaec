"""Advice on data for loops that make or await their batches without torch's DataLoader."""

from __future__ import annotations

from .case import Case
from .gains import formula, percent
from .options import framework
from .rule import FLOOR, Found, Rule

_DATA = ("data_read", "data_cpu", "data_queue")


def _ahead(case: Case) -> Found | None:
    if case.has_loader:
        return None
    spent, cpu = case.seconds(*_DATA), case.seconds("data_cpu", "data_queue")
    hidden = min(spent, case.window - spent)  # a batch is made while the step before it computes
    if hidden < FLOOR * case.window:
        return None
    if framework(case) == "nnunetv2":
        change = "Start more processes that augment: set the environment variable nnUNet_n_proc_DA"
    elif 2 * cpu > spent:
        change = "Make batches ahead in other processes, for example in a DataLoader with workers"
    else:
        change = "Make batches ahead, in a thread or in a DataLoader with workers"
    return Found(
        f"{change}, so that the loop computes meanwhile",
        formula(hidden / case.window, 0.0, spent / case.window),
        (
            f"the loop makes or awaits its batches without torch's DataLoader {percent(spent / case.window)} of the"
            f" time, {percent(cpu / case.window)} on a CPU",
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "data.ahead",
        ("storage", "cpu"),
        "The loop makes or awaits its batches without torch's DataLoader",
        "Make batches ahead, while the loop computes",
        "The smaller one of the time for batches and of the rest of the time. Lower bound: 0. Upper bound: all of the"
        " time for batches",
        "`data_read` and `data_cpu` fall",
        _ahead,
        removes=_DATA,
    ),
)
