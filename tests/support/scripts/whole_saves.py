"""Checkpoints by stand-ins for frameworks: modules with the same names and signatures, and their own clock.

whole_saves.py [saves|evaluates]. Writes what the stand-ins have measured. With an argument it is a rank of a group.
`saves`: only rank 0 writes, and the others wait for it in a barrier, as in Lightning. `evaluates`: only rank 0
evaluates, and the others wait for it in their next step. The script does not use whyidle.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
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
)


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
        made = getattr(importlib.import_module(module), owner)()
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
    if sys.argv[1:]:
        alone(sys.argv[1])
    else:
        each()
    (FOLDER / f"told-{os.environ.get('RANK', '0')}").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
