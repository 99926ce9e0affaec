"""What a program calls the settings that advice is about: its own option, its framework's argument, or torch's.

An option of the command line comes first, then the framework that runs the loop, then torch's own name.
"""

from __future__ import annotations

from typing import NamedTuple

from ...ledger.programs import (
    ACCUMULATION,
    ARGUMENTS,
    COMPILE,
    EVALUATION,
    LOGGING,
    PERSISTENT,
    PREFETCH,
    SAVES,
    WORKERS,
    concept_of,
)
from .case import Case


class Name(NamedTuple):
    """What a setting is called, and where it is set. Without a place, it is an option of the command line."""

    name: str
    place: str = ""

    def to(self, value: float | str | None = None) -> str:
        """The setting with a value. Without one, only its name."""
        if value is None:
            return f"{self.name} of the {self.place}" if self.place else self.name
        said = f"{value:g}" if isinstance(value, int | float) else value
        if self.place:
            return f"{self.name}={said} in the {self.place}"
        return f"{self.name} {said}" if self.name.startswith("-") else f"{self.name}={said}"


_TORCH = {
    WORKERS: Name("num_workers", "DataLoader"),
    PREFETCH: Name("prefetch_factor", "DataLoader"),
    PERSISTENT: Name("persistent_workers", "DataLoader"),
}
_TRANSFORMERS = {
    concept: Name(name, "TrainingArguments")
    for concept, name in {
        WORKERS: "dataloader_num_workers",
        PREFETCH: "dataloader_prefetch_factor",
        PERSISTENT: "dataloader_persistent_workers",
        ACCUMULATION: "gradient_accumulation_steps",
        LOGGING: "logging_steps",
        SAVES: "save_steps",
        EVALUATION: "eval_steps",
        COMPILE: "torch_compile",
    }.items()
}
_TRL = {concept: Name(name.name, "configuration of the trainer") for concept, name in _TRANSFORMERS.items()}
_OF_FRAMEWORK: dict[str, dict[str, Name]] = {
    "transformers": _TRANSFORMERS,
    "sentence_transformers": {
        concept: Name(name.name, "SentenceTransformerTrainingArguments") for concept, name in _TRANSFORMERS.items()
    },
    "trl": _TRL,
    "trl.dpo": _TRL,
    "lightning": {
        ACCUMULATION: Name("accumulate_grad_batches", "Trainer"),
        LOGGING: Name("log_every_n_steps", "Trainer"),
        SAVES: Name("every_n_train_steps", "ModelCheckpoint"),
        EVALUATION: Name("val_check_interval", "Trainer"),
    },
    "accelerate": {ACCUMULATION: Name("gradient_accumulation_steps", "Accelerator")},
    "speechbrain": {
        WORKERS: Name("num_workers", "dataloader_options of the hyperparameters"),
        PREFETCH: Name("prefetch_factor", "dataloader_options of the hyperparameters"),
        PERSISTENT: Name("persistent_workers", "dataloader_options of the hyperparameters"),
        ACCUMULATION: Name("--grad_accumulation_factor"),
    },
    "fastai": {
        WORKERS: Name("num_workers", "DataLoaders"),
        PERSISTENT: Name("persistent_workers", "DataLoaders"),
    },
    "skorch": {
        WORKERS: Name("iterator_train__num_workers", "net"),
        PREFETCH: Name("iterator_train__prefetch_factor", "net"),
        PERSISTENT: Name("iterator_train__persistent_workers", "net"),
    },
    "pytorch_tabnet": {WORKERS: Name("num_workers", "call of fit()")},
    "stable_baselines3": {
        LOGGING: Name("log_interval", "call of learn()"),
        SAVES: Name("save_freq", "CheckpointCallback"),
        EVALUATION: Name("eval_freq", "EvalCallback"),
    },
    "ultralytics": {WORKERS: Name("workers", "call of train()")},
    "mmengine": {
        WORKERS: Name("train_dataloader.num_workers", "configuration"),
        PREFETCH: Name("train_dataloader.prefetch_factor", "configuration"),
        PERSISTENT: Name("train_dataloader.persistent_workers", "configuration"),
        ACCUMULATION: Name("optim_wrapper.accumulative_counts", "configuration"),
        LOGGING: Name("default_hooks.logger.interval", "configuration"),
        SAVES: Name("default_hooks.checkpoint.interval", "configuration"),
        EVALUATION: Name("train_cfg.val_interval", "configuration"),
    },
    "torchtitan": {
        LOGGING: Name("--metrics.log_freq"),
        SAVES: Name("--checkpoint.interval"),
        COMPILE: Name("--compile.enable"),
    },
    "megatron": {
        WORKERS: Name("--num-workers"),
        LOGGING: Name("--log-interval"),
        SAVES: Name("--save-interval"),
        EVALUATION: Name("--eval-interval"),
    },
    "composer": {
        SAVES: Name("save_interval", "Trainer"),
        EVALUATION: Name("eval_interval", "Trainer"),
        LOGGING: Name("console_log_interval", "Trainer"),
    },
}
_ASYNC_SAVE = {
    "lightning": "plugins=[AsyncCheckpointIO()] in the Trainer",
    "torchtitan": "--checkpoint.async_mode async",
    "megatron": "--async-save",
}
"""How a framework saves asynchronously. Sources: the documentation of Lightning's `AsyncCheckpointIO`, of torchtitan's
checkpoints and of the arguments of Megatron-LM."""
_OWN_LOOP = {*_OF_FRAMEWORK, "nnunetv2", "torchrl"} - {"accelerate"}
"""The frameworks whose trainer calls backward passes and collectives itself: the user's code has no `no_sync()`."""


def framework(case: Case) -> str:
    """What runs the loop of the run, as `FRAMEWORKS` and `SUBCLASSES` name it; empty if it is not known."""
    return next((name for rank in case.ranks if (name := rank.newest.strings["framework"])), "")


def runs_the_loop(case: Case) -> bool:
    """Whether a framework has the loop, so that the user chooses by settings alone what a step does."""
    return framework(case) in _OWN_LOOP


def named(case: Case, concept: str) -> Name | None:
    """What this program calls a setting. None: not known, and torch has no name for it."""
    options = next((text.split() for rank in case.ranks if (text := rank.newest.strings["options"])), [])
    for option in options:
        if concept_of(option) == concept:
            return Name(option)
    known = _OF_FRAMEWORK.get(framework(case), {}).get(concept)
    if known is not None and framework(case) in _OPTIONS_TOO and any(_is_argument(each) for each in options):
        return Name(f"--{known.name}")
    return known or _TORCH.get(concept)


_OPTIONS_TOO = {"transformers", "sentence_transformers", "trl", "trl.dpo"}
"""Their arguments are options of the command line if the program parses it with HfArgumentParser."""
_ARGUMENTS = {name.name for name in _TRANSFORMERS.values()}


def _is_argument(option: str) -> bool:
    return option.startswith("--") and (concept_of(option) == ARGUMENTS or option[2:] in _ARGUMENTS)


def setting(case: Case, concept: str, value: float | str, otherwise: str = "") -> str:
    """The setting with its value, as this program names it. ``otherwise``: what to say if no name is known."""
    name = named(case, concept)
    return name.to(value) if name is not None else otherwise


def asynchronous_save(case: Case) -> str:
    """How the framework saves asynchronously; empty if it has no such setting, or is not known."""
    return _ASYNC_SAVE.get(framework(case), "")
