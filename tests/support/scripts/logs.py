"""A loop that logs through stand-ins with the names of loggers, and times each call. Prints, as JSON, the ns that it
spent in them, and ns per cause.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import types
from typing import Any

import torch

import whyidle
from whyidle.ledger.causes import CAUSES
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach as attached

STEPS = 20
spent = {"logging": 0, "evaluated": 0}
PAUSE = 0.005


class SummaryWriter:
    def add_scalar(self, *args: Any) -> None:
        time.sleep(PAUSE)

    def add_scalars(self, *args: Any) -> None:
        self.add_scalar(*args)

    def close(self) -> None:
        raise OSError("the disk is full")


class Run:
    def log(self, metrics: dict[str, float]) -> str:
        """Computes, as a table of images does."""
        end = time.thread_time() + PAUSE
        while time.thread_time() < end:
            json.dumps(metrics)
        return "logged"


def log_metrics(metrics: dict[str, float]) -> None:
    time.sleep(PAUSE)


def stand_in(name: str, **members: Any) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(members)
    return module


stand_in("torch.utils.tensorboard.writer", SummaryWriter=SummaryWriter)
stand_in("wandb.sdk.wandb_run", Run=Run)
mlflow = stand_in("mlflow", log_metrics=log_metrics)


def timed(what: str, call: Any, *args: Any) -> Any:
    begun = time.monotonic_ns()
    try:
        return call(*args)
    finally:
        spent[what] += time.monotonic_ns() - begun


def main() -> None:
    if "--plain" not in sys.argv:
        whyidle.attach()
    torch.set_num_threads(1)
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.001)
    writer, run = SummaryWriter(), Run()
    loss = torch.zeros(())
    for number in range(STEPS):
        loss = (weight * torch.ones(4)).square().sum()
        loss.backward()
        optimizer.step()
        timed("logging", writer.add_scalars, "loss", loss.item(), number)
        assert timed("logging", run.log, {"loss": loss.item()}) == "logged"
        timed("logging", mlflow.log_metrics, {"loss": loss.item()})
        with whyidle.phase("logging"):
            timed("logging", time.sleep, PAUSE)
        with whyidle.phase("eval"):
            timed("logging", writer.add_scalar, "eval", 0.0)
            timed("evaluated", time.sleep, PAUSE)
        thread = threading.Thread(target=writer.add_scalar, args=("beside", 0.0))
        thread.start()
        thread.join()
        with contextlib.suppress(OSError):
            timed("logging", writer.close)
            raise AssertionError("a logger's error is the program's")
    session = attached._session
    told: dict[str, Any] = {**spent, "loss": loss.item().hex()}
    if session.writer is not None:
        at, words = WORD_AT["cause_ns"][0], session.writer.words
        told["causes"] = dict(zip(CAUSES, words[at : at + len(CAUSES)].tolist(), strict=True))
        told["faults"], told["state"] = words[WORD_AT["faults"][0]], session.states["loggers"]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
