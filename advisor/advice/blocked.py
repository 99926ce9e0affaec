"""What the loop's own code waits for when it is blocked, and what to do about it.

The sampled place tells, or the parts of rollouts: below a logger, an environment or a reward, the change is another one
than for a read.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...ledger.programs import LOGGING
from ...verdict.sampled import acts_elsewhere, acts_while_blocked
from ...verdict.where import in_rewards, spots
from .case import Case
from .options import framework, named

_LOGGER = re.compile(
    r"(on_)?log(_(?!probs?\b|p\b|likelihood|softmax|sum_?exp|normal|prior)\w+)?|\w*(logger|tracker)\w*"
)
_LOGGERS = {"wandb", "mlflow", "tensorboard", "tensorboardX", "neptune", "comet_ml", "clearml", "aim", "swanlab"}
_REWARD = re.compile(r"\w*rewards?(_\w+)?")
_ENVIRONMENTS = {"gym", "gymnasium", "pettingzoo", "envpool", "dm_control"}
_STEPS = {"step", "reset"}
_VECTORS = {"stable_baselines3": "SubprocVecEnv", "torchrl": "ParallelEnv"}
"""Framework -> its class that runs environments in processes of their own."""


class Change(NamedTuple):
    """What to do about blocked code."""

    text: str
    sure: bool
    """Whether all of the blocked time goes away, as far as known."""


_EVALUATES = Change(
    "Let a thread or another process finish the evaluation, on a copy of the weights or of the predictions: most of"
    " what blocks the loop is in evaluations",
    False,
)


def by_place(case: Case) -> Change | None:
    """What to do if the loop is blocked in evaluations, a logger, a reward or an environment. None: it is
    not seen to be."""
    known, seen = framework(case), spots(case.account)
    if 2 * sum(rank.eval_idle for rank in case.ranks) > case.seconds("host", "host_blocked"):
        return _EVALUATES
    if acts_while_blocked(case.ranks):
        return _environment(known, case)
    for spot in seen:
        file, function, library = (str(spot[key]) for key in ("file", "function", "library"))
        if library in _LOGGERS or _LOGGER.fullmatch(function):
            return _log(case)
        if _REWARD.fullmatch(function) or _REWARD.fullmatch(file.removesuffix(".py")):
            return _reward(known)
        if library in _ENVIRONMENTS or (function in _STEPS and (known in _VECTORS or "env" in file.lower())):
            return _environment(known, case)
    if not seen and in_rewards(case.ranks):
        return _reward(known)
    if known in _VECTORS and not seen and acts_while_blocked(case.ranks, least=1):
        return _environment(known, case)
    if known == "nnunetv2":
        return Change(
            "Start more processes that augment: set the environment variable nnUNet_n_proc_DA. The loop waits for their"
            " queue",
            False,
        )
    return None


def _log(case: Case) -> Change:
    name = named(case, LOGGING)
    less = f"Log less often ({name.to()})" if name is not None else "Log less often"
    return Change(f"{less}, or let a thread send what the loop logs: the loop waits for its logger", True)


def _reward(known: str) -> Change:
    each = "with `async def` reward functions, which TRL runs together" if known.startswith("trl") else "with asyncio"
    return Change(
        f"Ask for the rewards of all completions of a step together: in one request, or {each}. They need the"
        " completions of this step, so nothing can ask for them in advance",
        False,
    )


def _environment(known: str, case: Case) -> Change:
    if acts_elsewhere(case.ranks):
        return Change(
            "The environments run in other processes already, and the loop waits for the slowest of them in each step:"
            " find out which one is slow, or let the model act for one half of them while the other half steps",
            False,
        )
    vector = _VECTORS.get(known, "gymnasium.vector.AsyncVectorEnv")
    return Change(
        f"Run several environments in processes of their own ({vector}), so that their steps overlap. They need the"
        " actions of the model, so nothing can make their steps in advance",
        False,
    )
