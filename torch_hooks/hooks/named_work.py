"""Evaluations and rollouts that a framework names: its methods are bracketed, if the training imports the framework.

No framework is imported here. Methods that a version does not have are skipped. A subclass that overrides a method
calls the original in most frameworks. Where it does not, each class is patched when its first object is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ledger.causes import PHASE, ROLLOUT_PARTS
from ...ledger.layout import WORD_AT
from ..machine import HOST, NOT_ENTERED
from ..patching import NothingToHook, Patches, owner_of
from . import environments

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_EVAL, _ROLLOUT = PHASE["eval"], PHASE["rollout"]
_PART_AT = WORD_AT["rollout_part_ns"][0]
_REWARD = "reward"


class Named(NamedTuple):
    """A method, or a function of a module."""

    module: str
    owner: str  # the class; empty for functions of the module
    method: str
    phase: int
    part: str = ""
    """One of ROLLOUT_PARTS. The method counts as that only inside a rollout: an update may call it, too."""
    made_by: str = ""
    """A method that each object calls when it is made. ``method`` is then patched in the class of the object."""


def _evaluations(module: str, owner: str, *methods: str) -> tuple[Named, ...]:
    return tuple(Named(module, owner, method, _EVAL) for method in methods)


def _parts(module: str, owner: str) -> tuple[Named, ...]:
    """Of a trainer of TRL that generates."""
    parts = {
        "_generate": "generation",
        "_calculate_rewards": _REWARD,
        "_get_per_token_logps": "log-probabilities",
        "_get_per_token_logps_and_entropies": "log-probabilities",
    }
    return (
        Named(module, owner, "_generate_and_score_completions", _ROLLOUT),
        *(Named(module, owner, method, _ROLLOUT, part) for method, part in parts.items()),
    )


NAMED: tuple[Named, ...] = (
    *_evaluations("transformers.trainer", "Trainer", "evaluate", "predict"),
    *(
        one
        for package in ("lightning.pytorch", "pytorch_lightning")
        for one in (
            *_evaluations(f"{package}.loops.evaluation_loop", "_EvaluationLoop", "run"),
            *_evaluations(f"{package}.loops.prediction_loop", "_PredictionLoop", "run"),
        )
    ),
    *_evaluations("mmengine.runner.loops", "ValLoop", "run"),
    *_evaluations("mmengine.runner.loops", "TestLoop", "run"),
    *_evaluations("speechbrain.core", "Brain", "_fit_valid", "evaluate"),
    *_evaluations("ultralytics.engine.validator", "BaseValidator", "__call__"),
    *_evaluations("fastai.learner", "Learner", "_do_epoch_validate"),
    *_evaluations("stable_baselines3.common.evaluation", "", "evaluate_policy"),
    *_evaluations("stable_baselines3.common.callbacks", "", "evaluate_policy"),
    Named("diffusers.pipelines.pipeline_utils", "DiffusionPipeline", "__call__", _EVAL, made_by="register_modules"),
    *(
        Named(module, "SentenceEvaluator", "__call__", _EVAL, made_by="__init__")
        for module in (
            "sentence_transformers.evaluation.SentenceEvaluator",
            "sentence_transformers.base.evaluation.evaluator",
        )
    ),
    Named("stable_baselines3.common.on_policy_algorithm", "OnPolicyAlgorithm", "collect_rollouts", _ROLLOUT),
    Named("stable_baselines3.common.off_policy_algorithm", "OffPolicyAlgorithm", "collect_rollouts", _ROLLOUT),
    Named("torchrl.collectors.collectors", "SyncDataCollector", "rollout", _ROLLOUT),
    Named("torchrl.collectors._single", "Collector", "rollout", _ROLLOUT),
    *_parts("trl.trainer.grpo_trainer", "GRPOTrainer"),
    *_parts("trl.trainer.rloo_trainer", "RLOOTrainer"),
    Named("trl.trainer.dpo_trainer", "DPOTrainer", "compute_ref_log_probs", _ROLLOUT),
)


def install(session: Session) -> Callable[[], None]:
    """Brackets the methods of NAMED as soon as their modules are imported."""
    patches = Patches()
    open_parts: list[str] = []
    for named in NAMED:
        make = _part(session, named.part, open_parts) if named.part else _whole(session, named.phase)
        patches.when_imported(named.module, _patch(session, patches, named, make))
    environments.install(session, patches)
    return patches.undo


Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def _patch(session: Session, patches: Patches, named: Named, make: Make) -> Callable[[ModuleType], None]:
    def patch(module: ModuleType) -> None:
        owner = getattr(module, named.owner, None) if named.owner else module
        try:
            if named.made_by:
                patches.replace(owner, named.made_by, _patching(session, patches, named.method, make))
            else:
                patches.replace(owner, named.method, make)
        except NothingToHook:
            return

    return patch


def _patching(session: Session, patches: Patches, method: str, make: Make) -> Make:
    """Patches ``method`` in the class of each object that is made."""

    def make_init(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                patches.replace(owner_of(type(self), method), method, make)
            except NothingToHook:
                pass
            except Exception as error:  # the fence around the training
                session.fault("evaluation", error)
            return original(self, *args, **kwargs)

        return init

    return make_init


def _whole(session: Session, phase: int) -> Make:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def named(*args: Any, **kwargs: Any) -> Any:
            old = session.loop.named_begins(phase)
            try:
                return original(*args, **kwargs)
            finally:
                session.loop.named_ends(phase, old)

        return named

    return make


def _part(session: Session, part: str, open_parts: list[str]) -> Make:
    """``open_parts``: shared by all parts. One inside another is a part of that."""
    index = ROLLOUT_PARTS.index(part)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def named(*args: Any, **kwargs: Any) -> Any:
            machine, writer = session.machine, session.writer
            if writer is None or machine.phase != _ROLLOUT or open_parts or not machine.mine():
                return original(*args, **kwargs)
            # On an accelerator, the device is idle during a reward in Python.
            old = machine.cut(HOST) if part == _REWARD and machine.device is not None else NOT_ENTERED
            begun = time.monotonic_ns()
            open_parts.append(part)
            try:
                return original(*args, **kwargs)
            finally:
                open_parts.pop()
                writer.words[_PART_AT + index] += time.monotonic_ns() - begun
                machine.leave(old)

        return named

    return make
