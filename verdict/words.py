"""The words for what makes a rank late, in headlines, and for times. Those for causes are in their rows
(ledger/cause_rows.py)."""

from __future__ import annotations

WORK: dict[str, dict[str, str]] = {
    "storage": {"checkpoint_write": "its checkpoints", "checkpoint_read": "restoring"},
    "cpu": {"checkpoint_cpu": "its checkpoints"},
    "straggler": {
        "evaluation": "its evaluation",
        "rollout": "its rollouts",
        "not_learned": "its generation or evaluation",
    },
}
"""Family that made a rank late -> {part of its own time: what to call it}.

The name is used instead of the family's if the part is at least MOST of the rank's excess over the others in that
family, and of the average wait of another rank for it.
"""


UNSEEN = "but too few looks asked whether the GPU had work in compute"


LATE_AFTERWARDS = "the others waited for it after their last steps"


LAUNCHES = "the GPU runs out of work while the loop computes: the host launches too late"


FEW_LOOKS = "the GPU runs out of work while the loop computes, and few looks say where"


SAID_OF_WORK: dict[str, str] = {
    "its evaluation": "it evaluates while others wait",
    "its rollouts": "its rollouts take longer than on the others",
    "its generation or evaluation": (
        "its generation or evaluation (compute without gradients) takes longer than on the others"
    ),
}
"""Name in WORK of a part of compute -> the reason in a headline."""


def time_of(seconds: float) -> str:
    """Such as `250 ms`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{digits(seconds * factor)} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def digits(number: float) -> str:
    return f"{number:.0f}" if number >= 9.95 else f"{number:.1f}".removesuffix(".0")
