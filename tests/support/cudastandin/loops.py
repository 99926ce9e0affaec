"""Ways to write the loop of a training. Each trains for the steps of its plan, and writes marks."""

from __future__ import annotations

import io
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

from cudastandin import shapes
from cudastandin.marks import Marks
from cudastandin.plan import LATE, SAVES, Plan

BATCH = 8
SAVE_SECONDS, EVALUATIONS = 0.3, 6


class Samples(Dataset[torch.Tensor]):
    """Samples for some batches. The first sample of a batch takes that many seconds to read."""

    def __init__(self, batches: int, seconds: float):
        self._batches, self._seconds = batches, seconds

    def __len__(self) -> int:
        return self._batches * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._seconds and index % BATCH == 0:
            time.sleep(self._seconds)
        return torch.ones(shapes.WIDTH)


class SlowFile(io.BytesIO):
    """A file on a slow disk, once in each save."""

    def flush(self) -> None:
        time.sleep(SAVE_SECONDS)


class Training:
    """What the loops have in common: a model, its optimizer, and batches."""

    def __init__(self, plan: Plan, marks: Marks):
        self.plan, self.marks = plan, marks
        self.rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.model, self.passes = getattr(shapes, plan.shape)(plan)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        seconds = plan.read_ms / 1e3 if self.rank == min(LATE, size - 1) else 0.0
        self.loader = DataLoader(Samples(plan.steps, seconds), BATCH)
        self._warm_up()

    def _warm_up(self) -> None:
        """At its first passes torch initialises itself, while the device has nothing to do. Here, that is startup."""
        self.passes(torch.ones(BATCH, shapes.WIDTH).cuda())
        self.optimizer.zero_grad()
        torch.cuda.synchronize()

    def step(self, batch: torch.Tensor) -> None:
        loss = self.passes(batch.cuda(non_blocking=True))
        self.optimizer.step()
        self.optimizer.zero_grad()
        if loss is not None:
            self.marks.losses.append(loss)

    def save(self, number: int) -> None:
        every = self.plan.save_every
        if every and self.rank == SAVES and number % every == 0:
            with self.marks.during(self.marks.save):
                torch.save({"step": number, "model": self.model.state_dict()}, SlowFile())


def plain(plan: Plan, marks: Marks) -> None:
    training = Training(plan, marks)
    for number, batch in enumerate(marks.batches(training.loader), 1):
        training.step(batch)
        training.save(number)
