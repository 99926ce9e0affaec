"""What a ledger says of the program that trains: the framework that runs its loop, and the names of its options.

Only names are kept, and only those in these tables: no values, no paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "ultralytics": ("ultralytics",),
    "nnunetv2": ("nnunetv2",),
    "trl": ("trl",),
    "sentence_transformers": ("sentence_transformers",),
    "speechbrain": ("speechbrain",),
    "fastai": ("fastai",),
    "stable_baselines3": ("stable_baselines3",),
    "skorch": ("skorch",),
    "pytorch_tabnet": ("pytorch_tabnet",),
    "torchrl": ("torchrl",),
    "mmengine": ("mmengine",),
    "torchtitan": ("torchtitan",),
    "megatron": ("megatron",),
    "composer": ("composer",),
    "lightning": ("lightning", "pytorch_lightning"),
    "transformers": ("transformers",),
    "accelerate": ("accelerate",),
    "hydra": ("hydra",),
}
"""Framework -> the packages whose code is on the stack while it runs a loop. The first one that is there counts: one
that runs another comes before it."""
SUBCLASSES: dict[str, dict[str, str]] = {
    "transformers": {
        "trl.trainer.dpo_trainer": "trl.dpo",
        "trl.trainer.base_trainer": "trl",
        "trl.trainer.sft_trainer": "trl",
        "trl.trainer.grpo_trainer": "trl",
        "sentence_transformers.trainer": "sentence_transformers",
        "sentence_transformers.sentence_transformer.trainer": "sentence_transformers",
    },
    "trl": {"trl.trainer.dpo_trainer": "trl.dpo"},
}
"""Framework -> module that has a subclass of its trainer, if it was imported -> what the ledger says then. The loop of
the subclass is that of the framework, so the stack does not show it."""

WORKERS, PREFETCH, PERSISTENT, ACCUMULATION, LOGGING, SAVES, EVALUATION, COMPILE, ARGUMENTS = (
    *("workers", "prefetch", "persistent", "accumulation", "logging", "saves", "evaluation", "compile"),
    "arguments",
)
_NAMES: dict[str, tuple[str, ...]] = {
    WORKERS: (
        *("j", "workers", "num_workers", "n_workers", "nworkers", "dataloader_num_workers", "data_workers"),
        *("num_data_workers", "loader_workers", "dataloader_workers", "train_num_workers", "worker_count"),
    ),
    PREFETCH: ("prefetch_factor", "dataloader_prefetch_factor"),
    PERSISTENT: ("persistent_workers", "dataloader_persistent_workers"),
    ACCUMULATION: (
        *("gradient_accumulation_steps", "grad_accumulation_steps", "accumulation_steps", "grad_accum_steps"),
        *("accumulate_grad_batches", "grad_accum", "accum_iter", "accum_steps", "grad_accumulation_factor"),
        *("accumulative_counts", "gradient_accumulation"),
    ),
    LOGGING: ("logging_steps", "log_interval", "log_every", "log_every_n_steps", "log_freq", "log_steps", "print_freq"),
    SAVES: (
        *("save_steps", "save_interval", "save_every", "save_freq", "checkpoint_interval", "ckpt_interval"),
        *("checkpoint_every", "checkpointing_steps", "every_n_train_steps"),
    ),
    EVALUATION: ("eval_steps", "eval_interval", "eval_freq", "eval_every", "val_check_interval", "val_interval"),
    COMPILE: ("torch_compile", "torchcompile", "compile", "use_compile"),
    ARGUMENTS: ("output_dir", "per_device_train_batch_size"),
}
CONCEPT_OF = {name: concept for concept, names in _NAMES.items() for name in names}
"""The name of an option, without dashes -> what it sets. Those of ARGUMENTS only tell that the arguments of a framework
are options of the command line."""
FRAMEWORK_BYTES, OPTIONS_BYTES = 32, 192

_SHORT = re.compile(r"(-[A-Za-z])(\d*)")
_LONG = re.compile(r"(--[A-Za-z][\w.-]{0,47})(=.*)?", re.DOTALL)
_KEY = re.compile(r"\+{0,2}((?:[A-Za-z_]\w{0,31}\.){0,4}[A-Za-z_]\w{0,47})=.*", re.DOTALL)
"""Hydra's and other frameworks' `data.num_workers=4`."""


def concept_of(option: str) -> str | None:
    """What an option sets, such as `-j`, `--num-workers`, or `data.num_workers`. None: it is not in the table."""
    if re.fullmatch(r"-[A-Za-z]", option):
        return CONCEPT_OF.get(option[1:]) if option == "-j" else None
    bare = option.lstrip("-").rpartition(".")[2].replace("-", "_")
    return CONCEPT_OF.get(bare) if len(bare) > 1 else None


def options_in(words: Iterable[str]) -> Iterator[str]:
    """The options of a command line that are in the table, by their names alone."""
    for word in words:
        for pattern in (_SHORT, _LONG, _KEY):
            if (match := pattern.fullmatch(word)) and concept_of(match[1]):
                yield match[1]
                break


def joined(options: Iterable[str]) -> str:
    """Options as one string of the ledger: as many as it holds, each once."""
    text = ""
    for option in dict.fromkeys(options):
        longer = f"{text} {option}".strip()
        if len(longer.encode()) < OPTIONS_BYTES:
            text = longer
    return text
