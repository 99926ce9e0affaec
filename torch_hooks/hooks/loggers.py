"""Records the time that the loop spends in loggers and experiment trackers, as the phase `logging`.

The methods are listed here by name. No library is imported, and what a version does not have is skipped. Logging inside
another log call belongs to that one, and logging inside a save or a collective belongs to the save or the collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ledger.causes import PHASE
from ..machine import AROUND, DATA, NOT_ENTERED
from ..patching import NothingToHook, Patches

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_LOGGING = PHASE["logging"]
_AROUND = (AROUND | {DATA}) - {PHASE["startup"], PHASE["shutdown"]}
"""The phases in which a logger counts for itself."""


class _Target(NamedTuple):
    module: str
    owner: str  # the class; empty for functions of the module
    names: tuple[str, ...]
    """A name that ends with `*` stands for everything that begins like it."""


_WRITER = ("add_*", "flush", "close")
_LIGHTNING = tuple(
    target
    for trainer, fabric in (("lightning.pytorch", "lightning.fabric"), ("pytorch_lightning", "lightning_fabric"))
    for target in (
        _Target(
            f"{trainer}.trainer.connectors.logger_connector.logger_connector", "_LoggerConnector", ("log_metrics",)
        ),
        *(
            _Target(f"{package}.loggers.{module}", owner, ("log_metrics", "save", "finalize"))
            for package in (trainer, fabric)
            for module, owner in (("csv_logs", "CSVLogger"), ("tensorboard", "TensorBoardLogger"))
        ),
        *(
            _Target(f"{trainer}.loggers.{module}", owner, ("log_metrics", "finalize"))
            for module, owner in (("wandb", "WandbLogger"), ("mlflow", "MLFlowLogger"), ("comet", "CometLogger"))
        ),
    )
)
_LOGGERS = (
    _Target("torch.utils.tensorboard.writer", "SummaryWriter", _WRITER),
    _Target("tensorboardX.writer", "SummaryWriter", _WRITER),
    _Target("wandb.sdk.wandb_run", "Run", ("log", "log_artifact", "save")),
    _Target("mlflow.tracking.client", "MlflowClient", ("log_*",)),
    _Target("mlflow.tracking.fluent", "", ("log_*",)),
    _Target("mlflow", "", ("log_*",)),
    _Target("comet_ml", "CometExperiment", ("log_*",)),
    _Target("clearml.logger", "Logger", ("report_*", "flush")),
    _Target("aim.sdk.run", "Run", ("track",)),
    _Target("transformers.trainer", "Trainer", ("log",)),
    _Target("accelerate.accelerator", "Accelerator", ("log",)),
    _Target("stable_baselines3.common.logger", "Logger", ("dump",)),
    _Target("fastai.callback.progress", "ProgressCallback", ("after_batch", "_write_stats")),
    _Target("fastai.callback.progress", "CSVLogger", ("_write_line",)),
    *(
        _Target("nnunetv2.training.logging.nnunet_logger", owner, ("log", "plot_progress_png"))
        for owner in ("MetaLogger", "nnUNetLogger")
    ),
    *_LIGHTNING,
)


def install(session: Session) -> Callable[[], None]:
    patches = Patches()
    for target in _LOGGERS:
        patches.when_imported(target.module, _patch(session, patches, target))
    return patches.undo


def _patch(session: Session, patches: Patches, target: _Target) -> Callable[[ModuleType], None]:
    def patch(module: ModuleType) -> None:
        owner = getattr(module, target.owner, None) if target.owner else module
        for name in _names(owner, target.names):
            try:
                patches.replace(owner, name, logging(session))
            except NothingToHook:
                continue
            session.state("loggers", "active")

    return patch


def _names(owner: Any, names: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for name in names:
        found += [one for one in vars(owner) if one.startswith(name[:-1])] if name.endswith("*") and owner else [name]
    return found


def logging(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Brackets a function that logs."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def log(*args: Any, **kwargs: Any) -> Any:
            machine = session.machine
            if not machine.stepping or machine.phase not in _AROUND or "loggers" in session.off:
                return original(*args, **kwargs)
            own = session.own_task()  # not after the phase has begun: a signal handler may raise here
            old = machine.cut(_LOGGING)
            if old == NOT_ENTERED:  # another thread
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                own.spent()
                machine.leave(old)

        return log

    return make
