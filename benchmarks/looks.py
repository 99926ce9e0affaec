"""Measures what the looks at the home stream cost: CPU time of the thread that looks, and the longest steps.

    python benchmarks/looks.py [--device cuda|sim] [--rounds N] [--seconds S]

A loop of ten small layers, whose host launches all the time, is recorded throughout. Blocks in which the thread looks
take turns with blocks in which it sleeps (A B A B ...). The figures are medians over the blocks. This is not a test:
nothing passes or fails.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple


class Block(NamedTuple):
    """The steps of a block, in µs, and the CPU time of the thread that looks, as a share of a core."""

    median: float
    nine_tenths: float
    longest: float
    core: float


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "sim"), help="default: cuda where there is one, else sim")
    parser.add_argument("--rounds", type=int, default=9, help="pairs of blocks (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a block (default: %(default)s)")
    arguments = parser.parse_args()
    import torch
    from gpu_check.cost import Loop, recording
    from gpu_check.rig import has_cuda, machine, rig_of

    torch.set_num_threads(1)
    rig = rig_of(arguments.device or ("cuda" if has_cuda() else "sim"))
    print(" · ".join(f"{key} {value}" for key, value in {**rig.describe(), **machine()}.items()))
    with recording():
        loop = Loop(rig)
        for _ in range(50):
            loop.step(0)
        blocks: dict[bool, list[Block]] = {True: [], False: []}
        for number in range(2 * arguments.rounds):
            blocks[number % 2 == 0].append(block(loop, number % 2 == 0, arguments.seconds))
    for looks, found in blocks.items():
        medians = [statistics.median(column) for column in zip(*found, strict=True)]
        print(
            f"{'with looks' if looks else 'without':<11} median {medians[0]:7.1f} µs   nine tenths {medians[1]:7.1f} µs"
            f"   longest {medians[2]:8.1f} µs   {100 * medians[3]:.3f} % of a core"
        )
    pairs = [a.median - b.median for a, b in zip(blocks[True], blocks[False], strict=True)]
    print(f"a step: {statistics.median(pairs):+.1f} µs with looks ({min(pairs):+.1f} to {max(pairs):+.1f})")
    return 0


def block(loop: object, looks: bool, seconds: float) -> Block:
    from whyidle.torch_hooks.looks import Looks

    original = Looks.look
    if not looks:
        Looks.look = lambda *_: None  # type: ignore[method-assign]  # the thread wakes up all the same
    try:
        cpu, begun, steps = _watcher_cpu(), time.monotonic(), []
        while (now := time.monotonic()) < begun + seconds:
            loop.step(0)  # type: ignore[attr-defined]
            steps.append((time.monotonic() - now) * 1e6)
        core = (_watcher_cpu() - cpu) / (time.monotonic() - begun)
    finally:
        if not looks:
            Looks.look = original  # type: ignore[method-assign]
    steps.sort()
    return Block(statistics.median(steps), steps[len(steps) * 9 // 10], steps[-1], core)


def _watcher_cpu() -> float:
    """Seconds on a CPU so far (schedstat: all but the tick that it is in)."""
    [watcher] = [thread for thread in threading.enumerate() if thread.name == "whyidle-device"]
    return int(Path(f"/proc/self/task/{watcher.native_id}/schedstat").read_text().split()[0]) / 1e9


if __name__ == "__main__":
    sys.exit(main())
