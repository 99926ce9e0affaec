"""A run that is killed again and again, and continues from its last save: benchmarks/advice.py trains it."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from advice_job import SlowFile
from advice_outcome import Outcome
from ranks import Failed, fork
from torch import nn

import whyidle

RESTART_SECONDS = 0.3
"""From a failure until the next attempt starts."""
SEED = 1


@dataclass(frozen=True)
class Killed:
    """Times in seconds. All runs are killed after the same times."""

    save_every: int
    """Steps."""
    step: float = 0.03
    width: int = 1000
    """A save of 4 MB."""
    between_failures: float = 6.0
    """On average; the times are exponentially distributed."""
    seconds: float = 60.0

    def run(self, folder: Path, names: tuple[str, ...]) -> Outcome:
        """Attempts, one after the other, until the time is over. The last one ends by itself."""
        began = time.monotonic()
        end = began + self.seconds
        times = random.Random(SEED)
        while True:
            failure = time.monotonic() + times.expovariate(1 / self.between_failures)
            pid = fork(partial(self._train, folder, end), folder / "errors")
            time.sleep(max(0.0, min(failure, end) - time.monotonic()))
            if failure < end:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if failure >= end:
                break
            time.sleep(RESTART_SECONDS)
        if not (folder / "done").exists():
            raise Failed((folder / "errors").read_text()[-2000:])
        done = int((folder / "done").read_text())
        if not done:
            raise Failed("every attempt was killed before it had saved: the run made no progress")
        return Outcome(folder / "ledgers", (time.monotonic() - began) / done)

    def _train(self, folder: Path, end: float) -> None:
        os.environ.update(WHYIDLE_DIR=str(folder / "ledgers"), WHYIDLE_RUN="advice")
        assert whyidle.attach()
        saved = folder / "saved"
        done = int(saved.read_text()) if saved.exists() else 0
        torch.set_num_threads(1)
        model = nn.Linear(self.width, self.width)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        while time.monotonic() < end:
            time.sleep(self.step)
            model(torch.ones(1, self.width)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done % self.save_every == 0:
                torch.save(model.state_dict(), SlowFile())
                (folder / "new").write_text(str(done))
                (folder / "new").replace(saved)
        whyidle.detach()
        (folder / "done").write_text(str(done))
