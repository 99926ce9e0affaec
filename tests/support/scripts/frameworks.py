"""Trains a small model by a framework, which is timed as its users would. It does not use whyidle.

frameworks.py NAME [ONLY]

Says on stdout for how many ns the loop waited for batches, was in its steps, and saved, and how long all of it took.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(os.environ["ACCOUNT_DIR"])
BATCH, STEPS, EPOCHS, SAVES = 8, 24, 2, 8
"""Samples of a batch, steps of an epoch, epochs, and steps from one save to the next."""
WIDTH = 1024
spent: defaultdict[str, int] = defaultdict(int)


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    begun = time.monotonic_ns()
    try:
        yield
    finally:
        spent[what] += time.monotonic_ns() - begun


class Samples(Dataset):
    def __init__(self, batches: int = STEPS, seconds: float = 0.002):
        self.size = batches * BATCH
        self.seconds = seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.seconds)
        return {"x": torch.full((16, WIDTH), index / self.size)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layers(x).square().mean()}


def transformers() -> None:
    """The callbacks for steps, and methods that a user overrides for the rest. Evaluation does not wait for slow
    batches."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Timed(Trainer):
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            with timed("batch"):
                return super().get_batch_samples(*args, **kwargs)

        def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
            with timed("step"):
                return super().prediction_step(*args, **kwargs)

        def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            with timed("checkpoint"):
                super()._save_checkpoint(*args, **kwargs)

    class Steps(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.begun = time.monotonic_ns()

        def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            spent["step"] += time.monotonic_ns() - self.begun
            spent["steps"] += 1
            self.stepped = time.monotonic_ns()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            spent["after_step"] += time.monotonic_ns() - self.stepped  # the schedule, and the gradients' end: host

    arguments = TrainingArguments(
        output_dir=str(FOLDER / "saved"),
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        save_steps=SAVES,
        eval_strategy="epoch",
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Timed(Net(), arguments, train_dataset=Samples(), eval_dataset=Samples(4, 0.0), callbacks=[Steps()])
    with timed("wall"):
        trainer.train()
    spent["saves"] = EPOCHS * STEPS // SAVES


def accelerate() -> None:
    """It has no timers, so these are the loop's."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = Net()
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters(), 1e-4), DataLoader(Samples(), BATCH)
    )
    with timed("wall"):
        for _ in range(EPOCHS):
            batches = iter(loader)
            while True:
                with timed("batch"):
                    batch = next(batches, None)
                if batch is None:
                    break
                with timed("step"):
                    optimizer.zero_grad()
                    accelerator.backward(net(**batch)["loss"])
                    optimizer.step()
                spent["steps"] += 1
                if spent["steps"] % SAVES == 0:
                    with timed("checkpoint"):
                        accelerator.save_state(str(FOLDER / f"saved-{spent['steps']}"))
                    spent["saves"] += 1


def lightning(package: str = "lightning.pytorch") -> None:
    """With its SimpleProfiler."""
    import importlib

    pl = importlib.import_module(package)
    profilers = importlib.import_module(f"{package}.profilers")
    callbacks = importlib.import_module(f"{package}.callbacks")

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.net(**batch)["loss"]

        def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            self.net(**batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-4)

    profiler = profilers.SimpleProfiler()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        profiler=profiler,
        callbacks=[callbacks.ModelCheckpoint(str(FOLDER / "saved"), every_n_train_steps=SAVES, save_top_k=-1)],
        default_root_dir=FOLDER,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with timed("wall"):
        trainer.fit(Module(), DataLoader(Samples(), BATCH), DataLoader(Samples(4), BATCH))
    for what, action in (  # the profiler's names end in these
        ("batch", "train_dataloader_next"),
        ("batch", "val_next"),
        ("step", "run_training_batch"),
        ("step", "validation_step"),
        ("checkpoint", "save_checkpoint"),
    ):
        found = [sum(taken) for name, taken in profiler.recorded_durations.items() if name.rpartition(".")[2] == action]
        spent[what] += int(1e9 * sum(found))
    spent["steps"], spent["saves"] = trainer.global_step, EPOCHS * STEPS // SAVES


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "pytorch_lightning":
        lightning("pytorch_lightning")
    else:
        {"transformers": transformers, "accelerate": accelerate, "lightning": lightning}[sys.argv[1]]()
    print("\n" + json.dumps(spent))


if __name__ == "__main__":
    main()
