"""Records checkpoints of frameworks: files, random states, JSON and barriers around the saves of torch. Also records
the step of an engine's optimizer, which may contain several steps of torch's.

The functions of a framework are bracketed. What torch saves inside one is a part of that checkpoint: its bytes count,
and all parts together count as one checkpoint. A barrier inside is a wait in a collective, as everywhere.

No framework is imported here. Methods that a version does not have are skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ledger.causes import PHASE
from ..machine import NOT_ENTERED
from ..meters.save import SaveMeter
from ..patching import NothingToHook, Patches
from ..returns import CheckpointFile, directory_of
from .checkpoint import bytes_of_rank, learn, saving
from .loggers import logging

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_RESTORE = PHASE["restore"]


class _Target(NamedTuple):
    module: str
    owner: str  # the class; empty for functions of the module
    saves: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    """What updates the parameters, around the steps of torch's optimizers."""


_TRANSFORMERS = (
    _Target(
        "transformers.trainer",
        "Trainer",
        ("_save_checkpoint", "save_model"),
        ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state", "_load_best_model"),
    ),
    _Target("transformers.modeling_utils", "PreTrainedModel", ("save_pretrained",)),
)
_ACCELERATE = (_Target("accelerate.accelerator", "Accelerator", ("save_state", "save_model"), ("load_state",)),)
_LIGHTNING = tuple(
    target
    for trainer, fabric in (("lightning.pytorch", "lightning.fabric"), ("pytorch_lightning", "lightning_fabric"))
    for target in (
        _Target(f"{trainer}.trainer.trainer", "Trainer", ("save_checkpoint",)),
        _Target(
            f"{trainer}.trainer.connectors.checkpoint_connector",
            "_CheckpointConnector",
            (),
            ("_restore_modules_and_callbacks", "restore_training_state"),
        ),
        _Target(f"{fabric}.fabric", "Fabric", ("save",), ("load", "load_raw")),
    )
)
_TORCHTITAN = (
    _Target("torchtitan.components.checkpoint", "CheckpointManager", ("save", "maybe_wait_for_staging"), ("load",)),
    _Target(
        "torchtitan.components.checkpointer.base",
        "BaseCheckpointManager",
        ("save", "maybe_wait_for_staging", "maybe_wait_for_saving"),
        ("load",),
    ),
)
_MEGATRON_OPTIMIZERS = ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer")
_MEGATRON_CHECKPOINTS = ("megatron.core.dist_checkpointing.serialization", "megatron.core.dist_checkpointing")
"""The package imports the functions from the module, so it has the originals if it was imported earlier."""
_DEEPSPEED = (
    _Target(
        "deepspeed.runtime.engine",
        "DeepSpeedEngine",
        ("save_checkpoint", "save_16bit_model"),
        ("load_checkpoint",),
        ("_take_model_step",),
    ),
)
_MEGATRON = (
    *(_Target("megatron.core.optimizer.optimizer", optimizer, steps=("step",)) for optimizer in _MEGATRON_OPTIMIZERS),
    *(_Target(module, "", loads=("load",)) for module in _MEGATRON_CHECKPOINTS),
)
_COMPOSER = (
    _Target("composer.callbacks.checkpoint_saver", "CheckpointSaver", ("_save_checkpoint",)),
    _Target("composer.utils.checkpoint", "", loads=("load_checkpoint",)),
)
_RAY = (
    ("ray.train.v2._internal.execution.context", "TrainContext"),
    ("ray.train._internal.session", "_TrainSession"),
)
"""The classes whose ``report(metrics, checkpoint)`` uploads a checkpoint, in both versions of Ray Train."""


def install_transformers(session: Session) -> Callable[[], None]:
    return _install(session, "transformers", _TRANSFORMERS)


def install_accelerate(session: Session) -> Callable[[], None]:
    """Also patches accelerate's loaders. They fetch ahead: before they deliver a batch, they ask for the next one."""
    patches = Patches()

    def patch_loaders(module: ModuleType) -> None:
        for name in ("DataLoaderShard", "DataLoaderDispatcher"):
            patches.replace(getattr(module, name), "__iter__", _handing_on(session))

    patches.when_imported("accelerate.data_loader", patch_loaders)
    undo = _install(session, "accelerate", _ACCELERATE)

    def undo_all() -> None:
        undo()
        patches.undo()

    return undo_all


def install_lightning(session: Session) -> Callable[[], None]:
    """Patches Lightning under all package names: `lightning`, and `pytorch_lightning` with `lightning_fabric`."""
    return _install(session, "lightning", _LIGHTNING)


def install_torchtitan(session: Session) -> Callable[[], None]:
    return _install(session, "torchtitan", _TORCHTITAN)


def install_deepspeed(session: Session) -> Callable[[], None]:
    return _install(session, "deepspeed", _DEEPSPEED)


def install_composer(session: Session) -> Callable[[], None]:
    return _install(session, "composer", _COMPOSER)


def install_ray(session: Session) -> Callable[[], None]:
    """What reports metrics in Ray also uploads a checkpoint, if it gets one. All workers wait for each other in it."""
    patches = Patches()

    def patch(owner: str) -> Callable[[ModuleType], None]:
        def patch_report(module: ModuleType) -> None:
            patches.replace(getattr(module, owner), "report", _reporting(session))
            session.state("ray", "active")

        return patch_report

    for module, owner in _RAY:
        patches.when_imported(module, patch(owner))
    return patches.undo


def install_megatron(session: Session) -> Callable[[], None]:
    """Megatron's child processes write the files of a save. The main process waits for them, in an asynchronous save
    with a later call."""
    patches = Patches()

    def patch_save(module: ModuleType) -> None:
        patches.replace(module, "save", _megatron_save(session))

    def patch_queue(module: ModuleType) -> None:
        patches.replace(module.AsyncCallsQueue, "schedule_async_request", saving(session, None))
        patches.replace(module.AsyncCallsQueue, "maybe_finalize_async_calls", _finalizing(session))

    for name in _MEGATRON_CHECKPOINTS:
        patches.when_imported(name, patch_save)
    patches.when_imported("megatron.core.dist_checkpointing.strategies.async_utils", patch_queue)
    undo = _install(session, "megatron", _MEGATRON)

    def undo_all() -> None:
        undo()
        patches.undo()

    return undo_all


def _install(session: Session, hook: str, targets: tuple[_Target, ...]) -> Callable[[], None]:
    patches = Patches()
    for target in targets:
        patches.when_imported(target.module, _patch(session, hook, patches, target))
    return patches.undo


def _patch(session: Session, hook: str, patches: Patches, target: _Target) -> Callable[[ModuleType], None]:
    def patch(module: ModuleType) -> None:
        owner = getattr(module, target.owner, None) if target.owner else module
        brackets = {_save: target.saves, _load: target.loads, _step: target.steps}
        for make, name in ((make, name) for make, names in brackets.items() for name in names):
            try:
                patches.replace(owner, name, make(session, hook))
            except NothingToHook:
                continue
            session.state(hook, "active")

    return patch


def _save(session: Session, hook: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            machine = session.machine
            old = machine.enter_save(SaveMeter(session.task, session.threads))
            if old == NOT_ENTERED:
                return original(*args, **kwargs)
            finished = False
            try:
                session.saves.whole_begins("save")
                result = original(*args, **kwargs)
                finished = True
                return result
            finally:
                machine.leave_save(old)
                _end(session, hook, finished)
                learn(session, sys._getframe(1))

        return save

    return make


def _reporting(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        whole, told = _save(session, "ray")(original), logging(session)(original)

        def report(*args: Any, **kwargs: Any) -> Any:
            saves = kwargs.get("checkpoint") is not None or (len(args) > 2 and args[2] is not None)  # self, metrics, …
            return (whole if saves else told)(*args, **kwargs)

        return report

    return make


def _load(session: Session, hook: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(*args: Any, **kwargs: Any) -> Any:
            machine = session.machine
            own = session.own_task()
            old = machine.enter_from_base(_RESTORE)
            if old == NOT_ENTERED:
                return original(*args, **kwargs)
            finished = False
            try:
                session.saves.whole_begins("load")
                result = original(*args, **kwargs)
                finished = True
                return result
            finally:
                own.spent()
                machine.leave(old)
                _end(session, hook, finished)

        return load

    return make


def _megatron_save(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def saved(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckpointFile:
        path = kwargs["checkpoint_dir"] if "checkpoint_dir" in kwargs else args[1]
        return directory_of(path, bytes_of_rank(path))

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        whole, begin = saving(session, saved)(original), saving(session, None)(original)

        def save(*args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("async_sharded_save"):
                return whole(*args, **kwargs)
            session.saves.begins_behind()
            return begin(*args, **kwargs)

        return save

    return make


def _finalizing(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Brackets the call that returns the numbers of the asynchronous saves that have finished since the last one."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        inner = saving(session, None)(original)

        def maybe_finalize_async_calls(*args: Any, **kwargs: Any) -> Any:
            finished = inner(*args, **kwargs)
            try:
                for _ in finished or ():
                    session.saves.done("save", behind=True)
            except Exception as error:  # the fence around the training
                session.fault("megatron", error)
            return finished

        return maybe_finalize_async_calls

    return make


def _step(session: Session, hook: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    loop = session.loop

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            loop.update_begins(hook)
            try:
                return original(*args, **kwargs)
            finally:
                loop.update_ends(hook)

        return step

    return make


def _handing_on(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Iterator[Any]:
            batches = original(loader)
            while True:
                try:
                    item = [next(batches)]  # not kept while the loop works on it
                except StopIteration:
                    return
                session.loop.batch_handed_on()
                yield item.pop()

        return __iter__

    return make


def _end(session: Session, hook: str, finished: bool) -> None:
    try:
        session.saves.whole_ends(finished)
    except Exception as error:  # the fence around the training
        session.fault(hook, error)
