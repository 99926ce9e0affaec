"""Advice on data for loops that make or await their batches without torch's DataLoader."""

from __future__ import annotations

from ...verdict import mounts
from .case import Case
from .gains import formula, percent
from .given import free_cpus
from .options import framework
from .rule import FLOOR, Found, Rule

_DATA = ("data_read", "data_cpu", "data_queue")


def _ahead(case: Case) -> Found | None:
    if case.has_loader:
        return None
    spent, cpu = case.seconds(*_DATA), case.seconds("data_cpu", "data_queue")
    awaited = sum(rank.newest.words["data_awaited_ns"][0] for rank in case.ranks) / 1e9
    if 2 * awaited >= spent > 0 or framework(case) == "nnunetv2":
        return _more(case, spent, cpu)
    hidden = min(spent, case.window - spent)  # a batch is made while the step before it computes
    if hidden < FLOOR * case.window:
        return None
    if 2 * cpu > spent:
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


def _more(case: Case, spent: float, cpu: float) -> Found | None:
    """For loops whose batches are made ahead, but too slowly."""
    saved = min(spent, case.window / 2) / case.window  # whoever makes them is always busy
    if 2 * cpu > spent:
        saved = min(saved, free_cpus(case))
    else:
        saved *= 1 - mounts.full(case.ranks, "data")
    if saved < FLOOR:
        return None
    kind = "processes" if 2 * cpu > spent else "threads or processes"
    change = f"Let more {kind} make batches at the same time: at least twice as many as now"
    if framework(case) == "nnunetv2":
        change = "Start more processes that augment: set the environment variable nnUNet_n_proc_DA"
    return Found(
        f"{change}, so that the loop does not have to wait",
        formula(saved, 0.0, spent / case.window),
        (
            f"the loop waits {percent(spent / case.window)} of the time for batches that are made ahead, without"
            f" torch's DataLoader; they are on a CPU in {percent(cpu / case.window)}",
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "data.ahead",
        ("storage", "cpu"),
        "The loop makes or awaits its batches without torch's DataLoader",
        "Make batches ahead, while the loop computes. If they are made ahead: more of them at the same time",
        "The smaller one of the time for batches and of the rest of the time. For twice as many makers: at most half of"
        " the time, and until all CPUs are busy. Lower bound: 0. Upper bound: all of the time for batches",
        "`data_read` and `data_cpu` fall",
        _ahead,
        removes=_DATA,
    ),
)
