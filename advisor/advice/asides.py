"""Advice on what a loop does beside training: reference models, loggers."""

from __future__ import annotations

import re

from ...ledger.programs import LOGGING
from ...verdict.sampled import function_of, is_sampled
from .case import Case
from .gains import formula, percent, untold
from .options import framework, named
from .rule import NOT, Found, Rule

_LOGS = re.compile(r"(\w+_)?(log(s|g\w+)?|add|write|track|emit|flush)(_\w+)?")
"""Names of functions that log whenever the loop does. Others, as a callback's `on_step_end`, run as often as they are
called."""


def _reference(case: Case) -> Found | None:
    if framework(case) != "trl.dpo":
        return None
    share = case.share("rollout") + sum(rank.no_grad for rank in case.ranks) / case.window
    epochs = max(rank.newest.words["loader_starts"][0] for rank in case.ranks)
    options = next((text for rank in case.ranks if (text := rank.newest.strings["options"])), "")
    name = "--precompute_ref_log_probs True" if "--" in options else "precompute_ref_log_probs=True in the DPOConfig"
    return Found(
        f"Set {name}: the reference model then sees each sample once, before the training, and not in each epoch",
        formula((1 - 1 / epochs) * share) if epochs > 1 else untold(formula(share)),
        (
            f"{percent(share)} of the time is compute without gradients in steps, which is the reference model's. A"
            " training of one epoch gains nothing in total, and a shorter one loses",
        ),
        {"precompute_ref_log_probs": "True"},
    )


def _logging(case: Case) -> Found | None:
    share = case.share("logging")
    name, function = named(case, LOGGING), _function(case)
    often = f" ({name.to()})" if name is not None else ""
    return Found(
        f"Do the work of {function} less often, or in a thread"
        if function
        else f"Log less often{often}, or let a thread send what the loop logs",
        formula(case.removable(("host",), ("logging",)), 0.0),
        (f"the loop is in loggers, trackers or callbacks {percent(share)} of the time",),
    )


def _function(case: Case) -> str:
    """The function that most of the time is below, if it is another one than those that log; otherwise empty."""
    if not is_sampled(case.ranks, "logging"):
        return ""
    worst = max(case.ranks, key=lambda rank: rank.seconds["logging"]).newest
    return "" if _LOGS.fullmatch(worst.strings["logging_below"].rpartition(" ")[2]) else function_of(worst, "logging")


RULES: tuple[Rule, ...] = (
    Rule(
        "compute.reference",
        ("compute",),
        "TRL's DPOTrainer runs the reference model in each step",
        "Compute the log-probabilities of the reference model once, before the training",
        "The time of `rollout` and of compute without gradients, in all epochs but one. Lower bound: 0",
        "`rollout` is nearly 0",
        _reference,
        f"{NOT}needs TRL",
        removes=None,
    ),
    Rule(
        "host.logging",
        ("host",),
        "The loop is in loggers, trackers or callbacks",
        "Log less often, or from a thread",
        "The share of `logging`, and of the waits for ranks that it made late. Lower bound: 0",
        "`logging` falls",
        _logging,
        removes=("logging",),
    ),
)
