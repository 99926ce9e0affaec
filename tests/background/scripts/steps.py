"""A loop that knows by its own clock when something worked beside it. It does not use whyidle.

steps.py [--seconds N] [--work CPU_SECONDS] [--memory MB] [--reads FOLDER] [--million PARAMETERS] [--beside WORK]

WORK is done by the loop's own process: a thread that computes in Python (`lock`), a thread that copies (`copy`), two
children (`child`), an asynchronous save (`save`), or a thread that hardly does anything (`logger`). It works for ON
seconds and rests for OFF. At the end it writes ``$BACKGROUND_DIR/truth-RANK.json``: begin and end of each step, of each
stretch of work, and of each call that begins a save, on CLOCK_MONOTONIC.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
FOLDER = Path(os.environ["BACKGROUND_DIR"])
now = time.monotonic
_matrix = torch.randn(160, 160, generator=torch.Generator().manual_seed(1))
stretches: list[tuple[float, float]] = []
blocked: list[tuple[float, float]] = []
"""Calls that begin a save. The report has what they take as time of a save."""
over = threading.Event()


def measured() -> float:
    """The seconds of one product, on an idle machine."""
    found = []
    for _ in range(20):
        since = time.thread_time()
        for _ in range(20):
            torch.mm(_matrix, _matrix)
        found.append((time.thread_time() - since) / 20)
    return min(found)


class Files(Dataset[torch.Tensor]):
    """Files of which the page cache has nothing."""

    def __init__(self, folder: str):
        self.files = sorted(str(path) for path in Path(folder).iterdir() if path.is_file())

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        file = os.open(self.files[index % len(self.files)], os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            data = os.read(file, 1 << 20)
        finally:
            os.close(file)
        return torch.frombuffer(bytearray(data[:64].ljust(64, b"\0")), dtype=torch.uint8).float() / 255


def holds_the_lock(until: float) -> None:
    kept: list[str] = []
    while now() < until:
        plan = [{"index": index, "fqn": f"layer.{index}"} for index in range(200)]
        kept = [*kept[-49:], json.dumps(plan, sort_keys=True)]


def copies(until: float) -> None:
    source = numpy.ones(8 << 20)
    target = numpy.empty_like(source)
    while now() < until:
        numpy.copyto(target, source)


def logs(until: float) -> None:
    while now() < until:
        json.dumps({"loss": 1.0})
        time.sleep(0.05)


def computes_in_a_child(until: float) -> None:
    words = [sys.executable, "-c", f"import time\nwhile time.monotonic() < {until}: pass"]
    for child in [subprocess.Popen(words) for _ in range(2)]:
        child.wait()


def works_now_and_then(work: Callable[[float], None], on: float, off: float) -> None:
    if over.wait(off):
        return
    while True:
        begun = now()
        work(begun + on)
        stretches.append((begun, now()))
        if over.wait(off):
            return


def saves_now_and_then(off: float, saver: str) -> Iterator[None]:
    """Saves many small tensors behind the loop: the plan of a save is made in Python."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    kind = AsyncCheckpointerType(saver)
    state = {f"layer.{index}": torch.zeros(16) for index in range(3000)}
    due, begun = now() + off, 0.0
    save: Any = None
    while True:
        if save is not None and save.done():
            stretches.append((begun, now()))
            save, due = None, now() + off
        if save is None and now() >= due:
            begun, at = now(), FOLDER / f"save-{len(stretches)}"
            save = checkpoint.async_save(state, checkpoint_id=at, async_checkpointer_type=kind)
            blocked.append((begun, now()))
        yield


WORKS = {"lock": holds_the_lock, "copy": copies, "child": computes_in_a_child, "logger": logs}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--work", type=float, default=0.02)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--reads", default="")
    parser.add_argument("--million", type=float, default=0.0)
    parser.add_argument("--beside", choices=[*WORKS, "save"])
    parser.add_argument("--saver", choices=["thread", "process"], default="thread")
    parser.add_argument("--on", type=float, default=2.5)
    parser.add_argument("--off", type=float, default=5.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    each = measured()
    width = max(64, int((args.million * 1e6) ** 0.5))
    net: nn.Module = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    if WORLD > 1 or args.beside == "save":
        torch.distributed.init_process_group("gloo")
    if WORLD > 1:
        net = nn.parallel.DistributedDataParallel(net)
    adapt = torch.optim.SGD(net.parameters(), 0.01)
    inputs, labels = torch.randn(8, width), torch.randint(0, 10, (8,))
    field = torch.zeros(args.memory << 18)
    batches = iter(DataLoader(Files(args.reads), 1, num_workers=1)) if args.reads else None
    saves = saves_now_and_then(args.off, args.saver) if args.beside == "save" else iter(lambda: None, 0)
    if args.beside in WORKS:
        daemon = threading.Thread(target=works_now_and_then, args=(WORKS[args.beside], args.on, args.off))
        daemon.name, daemon.daemon = f"beside-{args.beside}", True
        daemon.start()
    steps, begun = [], now()
    (FOLDER / "begun").touch()
    going = torch.ones(())
    while going:
        since = now()
        next(saves)
        if batches is not None:
            next(batches)
        loss = nn.functional.cross_entropy(net(inputs), labels)
        for _ in range(round(args.work / each)):
            torch.mm(_matrix, _matrix)
        if args.memory:
            field.add_(1.0)
        adapt.zero_grad()
        loss.backward()
        adapt.step()
        if WORLD > 1 and len(steps) % 20 == 0:
            going.fill_(float(now() - begun < args.seconds))
            torch.distributed.broadcast(going, 0)
        elif WORLD == 1 and now() - begun >= args.seconds:
            going.fill_(0.0)
        steps.append((since, now()))
    over.set()
    truth = {
        "rank": RANK,
        "steps": steps,
        "stretches": stretches,
        "blocked": blocked,
        "loss": float(loss.detach()).hex(),
    }
    (FOLDER / f"truth-{RANK}.json").write_text(json.dumps(truth))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
