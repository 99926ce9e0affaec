"""Runs that end on a GPU in several ways, and what `whyidle report` says of each. They share the device.

    python -m gpu_check.ends WAY

runs one of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path

import torch

from .loops import ledgers
from .rig import Rig
from .rows import Row, skipped
from .waits import whyidle_report

STEPS, AT = 300, 200
LIMIT_SECONDS = 60
HANGS_SECONDS = 25


def takes_too_much() -> None:
    free, _ = torch.cuda.mem_get_info()
    torch.empty(2 * free, dtype=torch.uint8, device="cuda")


def asks_for_a_wrong_row() -> None:
    torch.nn.functional.embedding(torch.tensor([11], device="cuda"), torch.ones(10, 8, device="cuda"))
    torch.cuda.synchronize()


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs() -> None:
    for _ in range(100):
        torch.cuda._sleep(2_000_000_000)
    torch.cuda.synchronize()


def exits() -> None:
    sys.exit(3)


WAYS: dict[str, tuple[Callable[[], None], str]] = {
    "out of memory": (takes_too_much, "OutOfMemoryError"),
    "device-side assert": (asks_for_a_wrong_row, "AcceleratorError"),
    "killed": (is_killed, "was killed, or crashed"),
    "a kernel that does not end": (hangs, "hangs"),
    "exit status 3": (exits, "ended with an error"),
    "work in flight": (lambda: None, ""),
}
"""Way -> what happens after AT steps, and a word that the report has."""


def ends(rig: Rig, fast: bool, wanted: Container[str]) -> Iterator[Row]:
    if rig.simulated:
        yield skipped("ways to end", "needs a GPU")
        return
    with ledgers() as folder:
        started = {way: _start(way, folder / way) for way in WAYS if way in wanted}
        end = time.monotonic() + LIMIT_SECONDS
        for way, process in started.items():
            wait = HANGS_SECONDS if way == "a kernel that does not end" else end - time.monotonic()
            try:
                process.wait(max(1.0, wait))
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait(LIMIT_SECONDS)
            report, word = whyidle_report(str(folder / way)), WAYS[way][1]
            said = " · ".join([*report["remarks"], *report["problems"]])
            steps = f"{report['steps']} steps, status {process.returncode}"
            yield Row(way, None, None, "", None, word in said, f"{steps}: {said}"[:300])


def _start(way: str, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir()
    words = [sys.executable, "-m", "whyidle.cli.main", "run", "--dir", str(folder), "--run", "ends", "--"]
    here = str(Path(__file__).resolve().parents[1])
    env = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{here}"}
    words += [sys.executable, "-m", "gpu_check.ends", way]
    return subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(way: str) -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(layers.parameters(), 1e-3)
    x = torch.ones(256, 1024, device="cuda")
    for number in range(STEPS):
        layers(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == AT:
            WAYS[way][0]()
        if number < STEPS - 20:
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
