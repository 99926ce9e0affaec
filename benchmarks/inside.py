"""Measures the time that whyidle's own code takes inside a real step, function by function, and counts its calls.

    python benchmarks/inside.py [--ranks 2] [--rounds 5] [--steps 600]

`overhead.py` compares whole steps, so on a busy machine it finds the noise of everything else. This benchmark stops the
time around each function that the hooks replace, and subtracts the time of the original. The figure of a function is
the median over all calls, and the result the sum over the functions of a step. Like everything that runs between two
operations of torch, this code finds the caches cold: in a loop of its own it takes a third of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from overhead import Loop, in_memory, start_child

_now = time.perf_counter_ns


class Stopwatch:
    """Puts a clock below each replaced function (before whyidle replaces it) and above it (afterwards)."""

    def __init__(self) -> None:
        self.spent: dict[str, list[int]] = defaultdict(list)
        self._inner: dict[str, int] = {}

    def below(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = _now()
            try:
                return original(*args, **kwargs)
            finally:
                self._inner[name] = _now() - begun

        setattr(owner, name, timed)

    def above(self, owner: Any, name: str) -> None:
        replaced = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner[name] = 0
            begun = _now()
            try:
                return replaced(*args, **kwargs)
            finally:
                self.spent[name].append(_now() - begun - self._inner[name])

        setattr(owner, name, timed)


def child(arguments: argparse.Namespace) -> None:
    import torch
    from torch.autograd import Variable
    from torch.nn.parallel.distributed import DistributedDataParallel
    from torch.utils.data import dataloader

    import whyidle
    from whyidle.torch_hooks.hooks.backward import _FinalBracket
    from whyidle.torch_hooks.loop import Loop as Hooked

    class Engine(type(Variable._execution_engine)):
        """Unlike autograd's own engine, its methods can be replaced."""

    Variable._execution_engine = Engine()

    def replaced() -> list[tuple[Any, str]]:
        return [
            (dataloader._BaseDataLoaderIter, "__next__"),
            (Variable._execution_engine, "run_backward"),
            *([(DistributedDataParallel, "forward")] if arguments.ranks > 1 else []),
        ]

    watch = Stopwatch()
    for owner, name in replaced():
        watch.below(owner, name)
    loop = Loop(arguments.ranks > 1)
    loop.run(100)
    whyidle.attach()
    loop.run(100)
    calls = [_calls(loop.step) for _ in range(100)]
    for owner, name in replaced():
        watch.above(owner, name)
    # The hook of the optimizer, and callbacks of autograd's engine: these have no original.
    for owner, name in ((Hooked, "optimizer_stepped"), *((_FinalBracket, n) for n in ("_queue", "_before", "_after"))):
        watch.above(owner, name)
    loop.run(50)
    watch.spent.clear()
    steps = loop.run(arguments.steps)
    if int(os.environ.get("RANK", "0")) == 0:
        parts = {name: statistics.median(ns) / 1000 * len(ns) / len(steps) for name, ns in watch.spent.items()}
        result = {"step_us": statistics.median(steps), "hooks_us": sum(parts.values()), "calls": min(calls), **parts}
        print(json.dumps(result))
    if arguments.ranks > 1:
        torch.distributed.destroy_process_group()


def _calls(step: Callable[[], None]) -> int:
    """How many of whyidle's functions a step calls on this thread."""
    count = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_globals.get("__name__", "").startswith("whyidle.")

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1, help="DDP ranks (default: 1, without DDP)")
    parser.add_argument("--rounds", type=int, default=5, help="processes, one after the other (default: 5)")
    parser.add_argument("--steps", type=int, default=600, help="steps in each (default: 600)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(arguments.ranks)]
    own = ["--child", "--ranks", str(arguments.ranks), "--steps", str(arguments.steps)]
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
        environment = {"WHYIDLE_DIR": folder, "OMP_NUM_THREADS": "1"}
        for _ in range(arguments.rounds):
            launcher = torchrun if arguments.ranks > 1 else ()
            said = start_child(*own, env=environment, launcher=launcher, script=Path(__file__).resolve())
            for name, value in json.loads(said).items():
                found[name].append(value)
    for name, values in found.items():
        print(f"{name:<24} {statistics.median(values):8.1f}   ({min(values):.1f} .. {max(values):.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
