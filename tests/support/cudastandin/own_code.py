"""Loops with code of their own that no hook sees, while their device has no work, or works for them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from cudastandin import shapes
from cudastandin.marks import Marks
from cudastandin.plan import Plan
from cudastandin.training import BATCH, Training

BATCH_MS, BETWEEN_MS, SLEEP_MS, TOKENS, BATCHES = 50, 3, 30, 10, 6
SCALES = 500
"""More parameters of one element, for an optimizer that works on each."""


def makes_batches(plan: Plan, marks: Marks) -> None:
    """In Python, after the device has done the last step."""
    training = Training(plan, marks)

    def get_batch() -> torch.Tensor:
        with marks.during(marks.data):
            return torch.full((BATCH, shapes.WIDTH), float(_computes(BATCH_MS) > 0))

    for _ in range(plan.steps):
        loss = training.backward(get_batch())
        training.update(loss)
        _read(loss)


def generates(plan: Plan, marks: Marks) -> None:
    """Every second step, token by token. The model runs for each, and the loop reads what came out."""
    training = Training(plan, marks)

    @torch.no_grad()
    def generate() -> None:
        for _ in range(TOKENS):
            training.model(torch.ones(BATCH, shapes.WIDTH, device="cuda")).sum().item()

    for number, _ in enumerate(training.steps(), 1):
        if number % 2 == 0:
            with marks.during(marks.beside):
                generate()


def sleeps_in_forward(plan: Plan, marks: Marks) -> None:
    training = Training(plan, marks)
    forward = training.model[1].forward

    def slow(x: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()
        time.sleep(SLEEP_MS / 1e3)
        return forward(x)

    training.model[1].forward = slow
    for _ in training.steps():
        pass


def evaluates_and_reads(plan: Plan, marks: Marks) -> None:
    """The trained model, in evaluation mode, and reads each result."""
    training = Training(plan, marks)
    batch = torch.ones(BATCH, shapes.WIDTH, device="cuda")

    def check() -> None:
        training.model.eval()
        with torch.no_grad():
            for _ in range(BATCHES):
                training.model(batch).mean().item()
        training.model.train()

    for number, _ in enumerate(training.steps(), 1):
        if number % 4 == 0:
            with marks.during(marks.beside):
                check()


def saves_itself(plan: Plan, marks: Marks) -> None:
    training = Training(plan, marks)

    def save_weights(number: int) -> None:
        with marks.during(marks.save):
            weights = [value.cpu().numpy().tobytes() for value in training.model.state_dict().values()]
            Path(os.environ["ACCOUNT_DIR"], f"weights-{number}").write_bytes(b"".join(weights))
            time.sleep(10 * SLEEP_MS / 1e3)

    for number, _ in enumerate(training.steps(), 1):
        if number % 5 == 0:
            save_weights(number)


def updates_one_by_one(plan: Plan, marks: Marks) -> None:
    training = Training(plan, marks)
    scales = [torch.nn.Parameter(torch.ones(1, device="cuda")) for _ in range(SCALES)]
    for scale in scales:
        scale.grad = torch.ones_like(scale)
    optimizer = torch.optim.AdamW(scales, foreach=False)
    for batch in training.batches():
        loss = training.backward(batch)
        optimizer.step()
        training.update(loss)
        _read(loss)


def computes_between_steps(plan: Plan, marks: Marks) -> None:
    """In Python, for less than the switch interval, so that it gives the lock up in the loader."""
    training = Training(plan, marks)
    for batch in training.batches():
        loss = training.backward(batch)
        training.update(loss)
        _read(loss)
        _computes(BETWEEN_MS)


def reads_itself(plan: Plan, marks: Marks) -> None:
    """From the files of $SLOW_FOLDER, as a member of the groups for which that is slow."""
    for group in os.environ["SLOW_GROUPS"].split():
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    training = Training(plan, marks)
    paths = sorted(Path(os.environ["SLOW_FOLDER"]).glob("*.bin"))

    def get_batch(number: int) -> torch.Tensor:
        with marks.during(marks.data):
            return torch.full((BATCH, shapes.WIDTH), paths[number].read_bytes()[0] / 255)

    for number in range(plan.steps):
        loss = training.backward(get_batch(number))
        training.update(loss)
        _read(loss)


def _computes(ms: float) -> int:
    end, turns = time.monotonic() + ms / 1e3, 0
    while time.monotonic() < end:
        turns += 1
    return turns


def _read(loss: torch.Tensor | None) -> None:
    assert loss is not None
    loss.item()
