"""What all loops have in common: batches, a model, its optimizer, saves and evaluations."""

from __future__ import annotations

import io
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from cudastandin import shapes
from cudastandin.marks import Marks
from cudastandin.plan import LATE, SAVES, Plan

BATCH = 8
SAVE_SECONDS, EVALUATIONS, LEAD = 0.3, 6, 2
"""How long the disk takes for a save, the batches of an evaluation, and by how many steps the host may be ahead of its
device."""


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

    def __init__(self, plan: Plan, marks: Marks, *, folded: int = 1, **options: Any):
        self.plan, self.marks = plan, marks
        self.rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.model, self.passes = getattr(shapes, plan.shape)(plan)
        self.optimizer = self._optimizer(**options)
        seconds = plan.read_ms / 1e3 if self.rank == min(LATE, size - 1) else 0.0
        self._loader = DataLoader(Samples(plan.steps * folded, seconds), BATCH, pin_memory=True)
        self._judge = shapes.blocks(plan).cuda() if plan.evaluate_every else None
        self._ahead: deque[torch.cuda.Event] = deque()
        self._warm_up()

    def _optimizer(self, **options: Any) -> torch.optim.Optimizer:
        if self.plan.shape != "zero":
            return torch.optim.SGD(self.model.parameters(), 0.01, **options)
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.SGD, lr=0.01)

    def _warm_up(self) -> None:
        """At its first passes torch initialises itself, while the device has nothing to do. Here, that is startup.

        The clock of a device begins in these passes, and takes a wait that is open then for compute. So ranks begin
        together."""
        if dist.is_initialized():
            dist.barrier()
        self.passes(torch.ones(BATCH, shapes.WIDTH).cuda())
        self.optimizer.zero_grad()
        torch.cuda.synchronize()

    def batches(self) -> Iterator[torch.Tensor]:
        return self.marks.batches(self._loader)

    def backward(self, batch: torch.Tensor) -> torch.Tensor | None:
        return self.passes(batch.cuda(non_blocking=True))

    def update(self, loss: torch.Tensor | None) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        if loss is not None:
            self.marks.losses.append(loss)
        self.limit_lead()

    def limit_lead(self) -> None:
        """Lets the host be at most LEAD steps ahead of its device, as trainers do."""
        event = torch.cuda.Event()
        event.record()
        self._ahead.append(event)
        if len(self._ahead) > LEAD:
            self._ahead.popleft().synchronize()

    def steps(self) -> Iterator[torch.Tensor | None]:
        for number, batch in enumerate(self.batches(), 1):
            loss = self.backward(batch)
            self.update(loss)
            self.save(number)
            self.evaluate(number)
            yield loss

    def save(self, number: int) -> None:
        """All ranks make the state, because some shapes gather it. One writes it."""
        every = self.plan.save_every
        if every and number % every == 0:
            state = {"step": number, "model": self.model.state_dict()}
            if self.rank == SAVES:
                with self.marks.during(self.marks.save):
                    torch.save(state, SlowFile())

    def evaluate(self, number: int) -> None:
        """One rank runs a copy of the model."""
        every = self.plan.evaluate_every
        if every and number % every == 0 and self.rank == SAVES and self._judge is not None:
            self._judge.eval()
            held_back = DataLoader(Samples(EVALUATIONS, 0.0), BATCH)
            with torch.no_grad():
                for batch in self.marks.batches(held_back):
                    self._judge(batch.cuda(non_blocking=True))
