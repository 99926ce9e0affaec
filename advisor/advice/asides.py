"""Advice on what a loop does beside training: evaluations, reference models, loggers."""

from __future__ import annotations

from ...ledger.programs import EVALUATION, LOGGING
from .case import Case
from .gains import formula, percent
from .options import framework, named
from .rule import NOT, Found, Rule

MUCH = 0.1
"""Advice on evaluations begins at this share of the time. A training needs some."""
LESS = 0.5
"""The part of the evaluations that is left if they are half as frequent."""


def _evaluation(case: Case) -> Found | None:
    share = case.share("evaluation")
    if share < MUCH:
        return None
    batches = sum(rank.newest.words["eval_batches"][0] for rank in case.ranks)
    name = named(case, EVALUATION)
    often = f" ({name.to()})" if name is not None else ""
    spread = {rank.rank: rank.seconds["evaluation"] for rank in case.ranks}
    one = len(spread) > 1 and max(spread.values()) > MUCH * case.window / len(spread) + 2 * min(spread.values())
    where = ". Let all ranks evaluate, each its part" if one else ""
    seen = f" on {batches} batches" if batches else ""
    return Found(
        f"Evaluate half as often{often}, or on half as many batches{where}",
        formula((1 - LESS) * share, 0.0, share),
        (f"the ranks evaluate{seen} {percent(share)} of the time. They learn nothing in it",),
    )


def _reference(case: Case) -> Found | None:
    if framework(case) != "trl.dpo":
        return None
    share = sum(rank.no_grad for rank in case.ranks) / case.window
    options = next((text for rank in case.ranks if (text := rank.newest.strings["options"])), "")
    name = "--precompute_ref_log_probs True" if "--" in options else "precompute_ref_log_probs=True in the DPOConfig"
    return Found(
        f"Set {name}: the reference model then sees each sample once, before the training, and not in each epoch",
        formula(share, 0.0),
        (
            f"{percent(share)} of the time is compute without gradients in steps, which is the reference model's. A"
            " training of one epoch gains nothing in total",
        ),
        {"precompute_ref_log_probs": "True"},
    )


def _logging(case: Case) -> Found | None:
    share = case.share("logging")
    name = named(case, LOGGING)
    often = f" ({name.to()})" if name is not None else ""
    return Found(
        f"Log less often{often}, or let a thread send what the loop logs",
        formula(share, 0.0),
        (f"the loop is in loggers, trackers or callbacks {percent(share)} of the time",),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "compute.evaluation",
        ("compute",),
        "Evaluations take at least a tenth of the time",
        "Evaluate less often, on fewer batches, or on all ranks",
        "Half of the time of evaluations. Lower bound: 0. Upper bound: all of it",
        "`evaluation` falls",
        _evaluation,
        f"{NOT}changes what the training reports",
        removes=("evaluation",),
    ),
    Rule(
        "compute.reference",
        ("compute",),
        "TRL's DPOTrainer runs the reference model in each step",
        "Compute the log-probabilities of the reference model once, before the training",
        "The time of compute without gradients. Lower bound: 0, because a training of one epoch needs each once",
        "`no_grad` is nearly 0",
        _reference,
        f"{NOT}needs TRL",
        removes=None,
    ),
    Rule(
        "host.logging",
        ("host",),
        "The loop is in loggers, trackers or callbacks",
        "Log less often, or from a thread",
        "The share of `logging`. Lower bound: 0",
        "`logging` falls",
        _logging,
        f"{NOT}has no benchmark yet",
        removes=("logging",),
    ),
)
