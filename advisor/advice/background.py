"""Advice on work beside the training that makes steps longer."""

from __future__ import annotations

from ...verdict.background import Cost, costs, worst
from .case import Case
from .gains import formula, percent
from .rule import Found, Rule

_PYTHON = ("lock", "host", "queue")


def _saver(case: Case) -> Found | None:
    cost = _worst(case)
    if cost is None or cost.kind != "save" or cost.name or cost.part not in _PYTHON:
        return None
    return Found(
        "Let another process write asynchronous saves:"
        " async_save(..., async_checkpointer_type=AsyncCheckpointerType.PROCESS)",
        formula(cost.share, 0.0, cost.share + 2 * cost.error),
        (f"asynchronous saves take {percent(cost.slower)} of the time of the {cost.steps:.0f} steps beside them",),
        {"async_checkpointer_type": "process"},
    )


def _worst(case: Case) -> Cost | None:
    return next(iter(worst(costs(rank.newest for rank in case.ranks))), None)


RULES: tuple[Rule, ...] = (
    Rule(
        "background.saver",
        ("host", "cpu"),
        "Asynchronous saves in a thread cost more than other background work, and the steps beside them wait for"
        " Python's lock or for a CPU",
        "Let another process write asynchronous saves",
        "What the saves cost now. Lower bound: 0. Upper bound: two standard errors more",
        "`background` in the report has saves `process`, and these cost less",
        _saver,
    ),
)
