"""Ways to write the loop of a training, each with one fault, for two ranks and with DDP unless a loop says otherwise.

Each function returns its home stream if that is not the current one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from accelerators.host import BATCH, LATE, READ_SECONDS, SAVES, Samples, Spans, barrier, save
from accelerators.shapes import blocks

STEPS, LOG_SECONDS, FOLDED = 12, 0.06, 3
"""Steps of a loop, how long a slow logger takes, and how many batches an accumulated step has."""


class Training:
    """What the loops have in common: model, optimizer, and batches, of which the late rank reads slowly."""

    def __init__(
        self, spans: Spans, *, wrapped: bool = True, slow: bool = True, workers: int = 0, batches: int = STEPS
    ):
        self.spans, self.rank = spans, dist.get_rank()
        model: Any = blocks(1.0).to("sim")
        self.model: Any = nn.parallel.DistributedDataParallel(model) if wrapped else model
        self.optimizer = torch.optim.SGD(model.parameters(), 0.01)
        seconds = READ_SECONDS if slow and self.rank == LATE else 0.0
        self._loader = DataLoader(Samples(batches, seconds), BATCH, num_workers=workers, pin_memory=workers > 0)

    def batches(self) -> Iterator[torch.Tensor]:
        return self.spans.batches(self._loader)

    def backward(self, batch: torch.Tensor) -> torch.Tensor:
        loss = self.model(batch.to("sim")).square().mean()
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self) -> Iterator[torch.Tensor]:
        for batch in self.batches():
            loss = self.backward(batch)
            self.update()
            yield loss


def reads_its_loss(spans: Spans) -> None:
    for loss in Training(spans).steps():
        loss.item()


def never_waits_for_the_device(spans: Spans) -> None:
    for _ in Training(spans).steps():
        pass


def pins_batches_of_a_worker(spans: Spans) -> None:
    for loss in Training(spans, workers=1).steps():
        loss.item()


def accumulates(spans: Spans) -> None:
    training = Training(spans, batches=STEPS * FOLDED)
    for number, batch in enumerate(training.batches(), 1):
        with contextlib.nullcontext() if number % FOLDED == 0 else training.model.no_sync():
            training.backward(batch)
        if number % FOLDED == 0:
            training.update()


def clips_gradients(spans: Spans) -> None:
    training = Training(spans)
    for batch in training.batches():
        training.backward(batch)
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0).item()
        training.update()


def scales_gradients(spans: Spans) -> None:
    training, scaler = Training(spans), torch.amp.GradScaler("sim")
    for batch in training.batches():
        with torch.autocast("sim", dtype=torch.bfloat16):
            loss = training.model(batch.to("sim")).square().mean().float()
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()


def averages_its_loss(spans: Spans) -> None:
    for loss in Training(spans).steps():
        dist.all_reduce(loss)
        loss.item()


def gathers_objects(spans: Spans) -> None:
    for loss in Training(spans).steps():
        dist.all_gather_object([None, None], {"loss": loss.item()})


def has_a_barrier_in_each_step(spans: Spans) -> None:
    for _ in Training(spans).steps():
        barrier(spans)


def reduces_its_gradients(spans: Spans) -> None:
    """Without DDP: each gradient by hand."""
    training = Training(spans, wrapped=False)
    for batch in training.batches():
        training.backward(batch)
        for parameter in training.model.parameters():
            dist.all_reduce(parameter.grad)
        training.update()


def trains_on_another_stream(spans: Spans) -> int:
    stream = torch.Stream("sim")
    with stream:
        for loss in Training(spans).steps():
            loss.item()
    return stream.stream_id


def copies_the_next_batch_on_another_stream(spans: Spans) -> None:
    training, stream = Training(spans), torch.Stream("sim")
    batches = training.batches()

    def fetch() -> torch.Tensor | None:
        batch = next(batches, None)
        with stream:
            return None if batch is None else batch.to("sim", non_blocking=True)

    following = fetch()
    while following is not None:
        torch.accelerator.current_stream().wait_stream(stream)
        loss = training.backward(following)
        following = fetch()
        training.update()
        loss.item()


def evaluates_on_slow_reads(spans: Spans) -> None:
    training = Training(spans, slow=False)
    seconds = READ_SECONDS if training.rank == LATE else 0.0
    for number, _ in enumerate(training.steps(), 1):
        if number % 4 == 0:
            training.model.eval()
            with torch.no_grad():
                for batch in spans.batches(DataLoader(Samples(6, seconds), BATCH)):
                    training.model.module(batch.to("sim")).sum().item()
            training.model.train()


def updates_an_averaged_model(spans: Spans) -> None:
    training = Training(spans)
    averaged = torch.optim.swa_utils.AveragedModel(training.model.module)
    for _ in training.steps():
        averaged.update_parameters(training.model.module)


def trains_two_models_in_turn(spans: Spans) -> None:
    training = Training(spans)
    second = nn.parallel.DistributedDataParallel(blocks(0.5).to("sim"))
    optimizer = torch.optim.SGD(second.parameters(), 0.01)
    for batch in training.batches():
        training.backward(batch)
        training.update()
        second(batch.to("sim")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def logs_slowly(spans: Spans) -> None:
    training = Training(spans, slow=False)
    for loss in training.steps():
        loss.item()
        if training.rank == LATE:
            time.sleep(LOG_SECONDS)


def saves_before_a_barrier(spans: Spans) -> None:
    training = Training(spans, slow=False)
    for number, _ in enumerate(training.steps(), 1):
        if number % 4 == 0:
            if training.rank == SAVES:
                save(spans)
            barrier(spans)
