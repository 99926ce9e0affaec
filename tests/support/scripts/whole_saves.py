"""Checkpoints by stand-ins for frameworks: modules with the same names and signatures, and their own clock.

whole_saves.py [saves|evaluates|updates]. Writes what the stand-ins have measured. With `saves` or `evaluates`, it is a
rank of a group. `saves`: only rank 0 writes, and the others wait for it in a barrier, as in Lightning. `evaluates`:
only rank 0 evaluates, and the others wait for it in their next step. `updates`: an engine steps its optimizer several
times in one update. The script does not use whyidle.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

FOLDER = Path(os.environ["ACCOUNT_DIR"])
told: Counter[str] = Counter()
kept: list[Any] = []
"""Gradients that outlive the process group; account.py says what hangs without them."""

WORK = "import whole_saves_work as work\n"
MODULES = {
    "transformers.trainer": """
class Trainer:
    def _save_checkpoint(self, model, trial):
        with work.whole("save"):
            self.save_model("somewhere", _internal_call=True)
            work.save(), work.compute(), work.block()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        with work.whole("save"):
            work.save()

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        with work.whole("load"):
            work.block(), work.load()
""",
    "transformers.modeling_utils": """
class PreTrainedModel:
    def save_pretrained(self, save_directory, is_main_process=True, **kwargs):
        with work.whole("save"):
            work.save(), work.compute()
""",
    "accelerate.accelerator": """
class Accelerator:
    def save_state(self, output_dir=None, safe_serialization=True, **save_model_func_kwargs):
        with work.whole("save"):
            work.compute(), work.save(), work.save(), work.block(), work.save()
        return output_dir

    def load_state(self, input_dir=None, load_kwargs=None, **load_model_func_kwargs):
        with work.whole("load"):
            work.load(), work.block()
""",
    **dict.fromkeys(
        ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
        """
class Trainer:
    def save_checkpoint(self, filepath, weights_only=None, storage_options=None):
        with work.whole("save"):
            work.compute()
            work.write()
            work.barrier()
""",
    ),
    "torchtitan.components.checkpoint": """
class CheckpointManager:
    def save(self, curr_step, last_step=False):
        if curr_step % 2:
            return
        with work.whole("save"):
            work.block(), work.save()

    def load(self, step=-1):
        with work.whole("load"):
            work.load()
        return True
""",
    "deepspeed.runtime.engine": """
class DeepSpeedEngine:
    def save_checkpoint(self, save_dir, tag=None, client_state={}, save_latest=True, exclude_frozen_parameters=False):
        with work.whole("save"):
            work.compute(), work.save(), work.block(), work.save()
        return True

    def load_checkpoint(self, load_dir, tag=None, load_module_strict=True):
        with work.whole("load"):
            work.load(), work.load(), work.block()

    def _take_model_step(self, lr_kwargs):
        for optimizer in lr_kwargs["optimizers"]:
            work.compute()
            optimizer.step()
        work.compute()
""",
    "composer.callbacks.checkpoint_saver": """
class CheckpointSaver:
    def _save_checkpoint(self, state, logger):
        with work.whole("save"):
            work.compute(), work.save(), work.block()
""",
    "ray.train.v2._internal.execution.context": """
class TrainContext:
    def report(self, metrics, checkpoint=None, checkpoint_dir_name=None):
        if checkpoint is not None:
            with work.whole("save"):
                work.save(), work.compute(), work.block()
""",
    "ray.train._internal.session": """
class _TrainSession:
    def report(self, metrics, checkpoint=None):
        if checkpoint is not None:
            with work.whole("save"):
                work.save()
""",
    "megatron.core.dist_checkpointing.serialization": """
def save(sharded_state_dict, checkpoint_dir, sharded_strategy=None, common_strategy=None, async_sharded_save=False):
    with work.whole("save"):
        work.pack(), work.in_child(checkpoint_dir)

def load(sharded_state_dict, checkpoint_dir, sharded_strategy=None):
    with work.whole("load"):
        work.load()
""",
}
"""Name of the module -> its source."""

SAVE_STEPS = (
    ("transformers.trainer", "Trainer", "_save_checkpoint", (None, None)),
    ("transformers.trainer", "Trainer", "save_model", ("somewhere",)),
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained", ("somewhere",)),
    ("accelerate.accelerator", "Accelerator", "save_state", ("somewhere",)),
    ("lightning.pytorch.trainer.trainer", "Trainer", "save_checkpoint", ("somewhere",)),
    ("pytorch_lightning.trainer.trainer", "Trainer", "save_checkpoint", ("somewhere",)),
    ("torchtitan.components.checkpoint", "CheckpointManager", "save", (1,)),
    ("torchtitan.components.checkpoint", "CheckpointManager", "save", (2,)),
    ("transformers.trainer", "Trainer", "_load_from_checkpoint", ("somewhere",)),
    ("accelerate.accelerator", "Accelerator", "load_state", ("somewhere",)),
    ("torchtitan.components.checkpoint", "CheckpointManager", "load", ()),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "save_checkpoint", ("somewhere",)),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "load_checkpoint", ("somewhere",)),
    ("composer.callbacks.checkpoint_saver", "CheckpointSaver", "_save_checkpoint", (None, None)),
    ("ray.train.v2._internal.execution.context", "TrainContext", "report", ({}, "somewhere")),
    ("ray.train.v2._internal.execution.context", "TrainContext", "report", ({},)),
    ("ray.train._internal.session", "_TrainSession", "report", ({}, "somewhere")),
    ("megatron.core.dist_checkpointing.serialization", "", "save", ({}, FOLDER)),
    ("megatron.core.dist_checkpointing.serialization", "", "load", ({}, FOLDER)),
)
"""The calls, in order: module, class (empty for a function), name, arguments."""


class Work:
    """What the stand-ins do, as a separate module."""

    def __init__(self) -> None:
        self.file = FOLDER / f"{os.getpid()}.pt"
        self.open = False

    @contextlib.contextmanager
    def whole(self, kind: str) -> Iterator[None]:
        if self.open:
            yield
            return
        self.open = True
        begun, cpu = time.monotonic_ns(), time.thread_time_ns()
        try:
            yield
            told[f"{kind}s"] += 1
        finally:
            told[f"{kind}_ns"] += time.monotonic_ns() - begun
            told[f"{kind}_cpu_ns"] += time.thread_time_ns() - cpu
            self.open = False

    def save(self) -> None:
        torch.save(torch.ones(100_000), self.file)
        told["save_bytes"] += self.file.stat().st_size

    def pack(self) -> None:
        """Serialises into memory, as Megatron does with small objects."""
        torch.save(torch.ones(1000), io.BytesIO())

    def in_child(self, folder: Path) -> None:
        """A child process writes a file of this rank."""
        command = "import sys, time; open(sys.argv[1], 'wb').write(bytes(50_000)); time.sleep(0.1)"
        subprocess.run([sys.executable, "-S", "-c", command, str(folder / "__0_0.distcp")], check=True)
        told["save_bytes"] += 50_000

    def write(self) -> None:
        if not dist.is_initialized():
            self.save()
        elif dist.get_rank() == 0:
            time.sleep(0.3)
            self.save()

    def load(self) -> None:
        torch.load(self.file)
        told["load_bytes"] += self.file.stat().st_size

    def barrier(self) -> None:
        if dist.is_initialized():
            begun = time.monotonic_ns()
            dist.barrier()
            told["barrier_ns"] += time.monotonic_ns() - begun

    def compute(self) -> None:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass

    def block(self) -> None:
        time.sleep(0.1)


def build() -> None:
    """Writes the stand-ins to a directory that Python searches before installed packages."""
    sys.modules["whole_saves_work"] = Work()  # type: ignore[assignment]
    site = FOLDER / f"site-{os.getpid()}"
    for name, source in MODULES.items():
        path = site.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(site).parents[:-1]:
            (site / parent / "__init__.py").touch()
        path.write_text(WORK + source)
    sys.path.insert(0, str(site))


def train(steps: int) -> None:
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for (batch,) in DataLoader(TensorDataset(torch.ones(2 * steps, 64)), 2):
        net(batch).sum().backward()
        if dist.is_initialized():
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
                kept.append(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


def each() -> None:
    for module, owner, method, arguments in SAVE_STEPS:
        train(2)
        found = importlib.import_module(module)
        made = getattr(found, owner)() if owner else found
        result: Any = getattr(made, method)(*arguments)
        if method == "save_state":
            assert result == "somewhere"
    trainer = importlib.import_module("transformers.trainer").Trainer
    told["parameters"] = len(inspect.signature(trainer.save_model).parameters)
    work: Any = sys.modules["whole_saves_work"]
    work.save = lambda: 1 / 0
    train(2)
    with contextlib.suppress(ZeroDivisionError):
        trainer().save_model("somewhere")


def update() -> None:
    engine = importlib.import_module("deepspeed.runtime.engine").DeepSpeedEngine()
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for (batch,) in DataLoader(TensorDataset(torch.ones(10, 64)), 2):
        net(batch).sum().backward()
        begun = time.monotonic_ns()
        engine._take_model_step({"optimizers": [optimizer] * 3})
        told["update_ns"] += time.monotonic_ns() - begun
        told["steps"] += 1
        optimizer.zero_grad()


def evaluate() -> None:
    begun = time.monotonic_ns()
    for _ in DataLoader(TensorDataset(torch.ones(12, 64)), 4):
        with torch.no_grad():
            work: Any = sys.modules["whole_saves_work"]
            work.compute()
    told["evaluation_ns"] += time.monotonic_ns() - begun


def alone(what: str) -> None:
    dist.init_process_group("gloo")
    trainer = importlib.import_module("lightning.pytorch.trainer.trainer").Trainer()
    train(2)
    told.clear()
    for _ in range(10):
        train(20)
        if what == "saves":
            trainer.save_checkpoint("somewhere")
        elif dist.get_rank() == 0:
            evaluate()
    train(20)
    dist.destroy_process_group()


def main() -> None:
    build()
    if sys.argv[1:] == ["updates"]:
        update()
    elif sys.argv[1:]:
        alone(sys.argv[1])
    else:
        each()
    (FOLDER / f"told-{os.environ.get('RANK', '0')}").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
