"""Training loops with whyidle attached. Raw events measure their work, and `Account` reads the ledger's figures."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import whyidle
from whyidle.ledger.causes import CAUSES
from whyidle.ledger.reader import Ledger, read_ledger

from .rig import Pairs, Rig
from .rows import KEEP, Row, at_most, compare

WIDTH = 64
DATA = ("data_read", "data_cpu", "data_queue", "data_handoff")
WAITS = ("network", "straggler", "pipeline", "collective")


class Known(nn.Module):
    """A layer whose passes keep the device busy. Raw event pairs measure for how long."""

    def __init__(self, rig: Rig, busy: Pairs, forward_ms: float, backward_ms: float, width: int = WIDTH):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self._spend = (rig, busy, forward_ms, backward_ms)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Spend.apply(torch.tanh(self.linear(x)), self._spend)  # pyright: ignore[reportReturnType]


class _Spend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, spend: tuple[Rig, Pairs, float, float]) -> torch.Tensor:
        ctx.spend = spend
        rig, busy, ms, _ = spend
        _sleep(rig, busy, ms)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        rig, busy, _, ms = ctx.spend
        _sleep(rig, busy, ms)
        return grads[0].clone(), None


def _sleep(rig: Rig, busy: Pairs, ms: float) -> None:
    if ms:
        begun = rig.mark()
        rig.sleep(ms)
        busy.add(begun, rig.mark())


def blocks(rig: Rig, busy: Pairs, count: int, forward_ms: float, backward_ms: float) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(*(Known(rig, busy, forward_ms, backward_ms) for _ in range(count))).to(rig.device)


class Account:
    """The figures of a ledger on the last steps of a run."""

    def __init__(self, ledger: Ledger, simulated: bool):
        self.ledger = ledger
        self._simulated = simulated

    def ms(self, causes: Sequence[str], steps: int) -> float:
        """Milliseconds per step in ``causes``: the median of the last ``steps`` steps."""
        ring = self.ledger.ring[-steps:]
        if len(ring) < steps:
            raise RuntimeError(f"the ledger has {len(ring)} steps, {steps} were made")
        return statistics.median(sum(step.causes[CAUSES.index(cause)] for cause in causes) for step in ring) / 1e6

    def sound(self, what: str, unmeasured: bool = True) -> list[Row]:
        """The checks of every run: no faults, nothing unmeasured, and causes that sum to the wall time."""
        ledger, simulated = self.ledger, self._simulated
        if not ledger.device or ledger.device == "cpu":
            raise RuntimeError(f"{what}: the hooks took the rank for one on a CPU: {ledger.hook_states}")
        begun = ledger.words["start_ns"][0]
        wall = ledger.until_ns - begun
        causes = ledger.cause_ns
        total = sum(causes.values()) + ledger.pending_ns
        rows = [
            at_most("faults", simulated, f"{what}: faults", ledger.faults, "count"),
            compare("sum", simulated, f"{what}: causes over wall", 1.0, total / wall, "ratio"),
            at_most("unattributed", simulated, f"{what}: unattributed", causes["unattributed"] / wall, "ratio"),
        ]
        if unmeasured:
            rows.append(at_most("unmeasured", simulated, f"{what}: boundaries unmeasured", ledger.unmeasured, "count"))
        failed = [hook for hook, state in ledger.hook_states.items() if state == "failed"]
        if failed:
            rows.append(Row(f"{what}: hooks that failed", 0, len(failed), "count", 0, False, ", ".join(failed)))
        for row in rows:
            row.routine = True
        return rows


@contextmanager
def ledgers() -> Iterator[Path]:
    """A folder for ledgers, in memory if /dev/shm can be written."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="whyidle-gpu-", dir=where) as folder:
        yield Path(folder)
        if keep := os.environ.get(KEEP):
            for path in Path(folder).iterdir():
                if path.is_file():
                    shutil.copy(path, Path(keep) / f"{time.time():.0f}-{path.name}")


def attached(rig: Rig, train: Callable[[], Any], name: str = "gpu-check") -> Account:
    """Trains with whyidle attached, lets the device finish, and reads the ledger."""
    with ledgers() as folder:
        os.environ["WHYIDLE_DIR"], os.environ["WHYIDLE_RUN"] = str(folder), name
        if not whyidle.attach():
            raise RuntimeError("whyidle.attach() refused: see stderr")
        try:
            train()
            rig.synchronize()
        finally:
            whyidle.detach()
        return read_only(folder, rig.simulated)


def read_only(folder: Path, simulated: bool) -> Account:
    """Reads the only ledger of a folder."""
    (path,) = folder.iterdir()
    return Account(read_ledger(str(path), steps=True), simulated)


def batch(rig: Rig, rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1)).to(rig.device)


def step_on(model: Callable[[torch.Tensor], torch.Tensor], optimizer: Any, x: torch.Tensor) -> torch.Tensor:
    """Runs one training step. Returns its loss, which stays on the device."""
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
