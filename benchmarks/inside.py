"""Measures the CPU time that whyidle's own code takes inside a real step, function by function.

    python benchmarks/inside.py [--arm ddp] [--rounds 5] [--steps 600]

`overhead.py` compares whole steps, so on a busy machine it finds the noise of everything else. This benchmark measures
the CPU time of the training thread in each function that the hooks replace, and subtracts that of the original. The
figure of a function is the mean over the steps, because work that is seldom necessary (a meter, a block of waits) has
its part in it. Like everything that runs between two operations of torch, this code finds the caches cold: in a loop of
its own it takes a third of the time. Two readings of the clock are a part of each call.

It also measures older versions, if one comes first in PYTHONPATH (docs/overhead.md).
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

from overhead import ARMS, Loop, in_memory, start_child, step_of

_now = time.thread_time_ns


class Stopwatch:
    """Measures the CPU time of functions, less that of the originals which they call. Only for one thread."""

    def __init__(self) -> None:
        self.ns: dict[str, int] = defaultdict(int)
        self._originals = [0]  # for each open call: the time in functions that it has called and that are not whyidle's

    def original(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = _now()
            try:
                return function(*args, **kwargs)
            finally:
                self._originals[-1] += _now() - begun

        return timed

    def own(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._originals.append(0)
            begun = _now()
            try:
                return function(*args, **kwargs)
            finally:
                spent = _now() - begun
                self.ns[name] += spent - self._originals.pop()

        return timed

    def around_hooks(self) -> None:
        """Measures everything that a hook replaces from now on."""
        from whyidle.torch_hooks.patching import Patches

        replace = Patches.replace

        def replace_timed(patches: Patches, owner: Any, name: str, make: Callable[..., Any]) -> None:
            replace(patches, owner, name, lambda original: self.own(name, make(self.original(original))))

        setattr(Patches, "replace", replace_timed)  # noqa: B010 - the type checker wants the same names


def child(arguments: argparse.Namespace) -> None:
    import torch
    from torch.autograd import Variable

    import whyidle
    from whyidle.torch_hooks.hooks.backward import _FinalBracket

    watch = Stopwatch()
    # Unlike those of autograd's own engine, the methods of an object of this class can be replaced.
    engine: Any = type("Engine", (type(Variable._execution_engine),), {})()
    engine.run_backward = watch.original(engine.run_backward)
    Variable._execution_engine = engine
    try:
        from whyidle.torch_hooks.loop import Loop as Hooked
    except ImportError:  # versions before 2026-11-23
        from whyidle.torch_hooks.session import Session as Hooked
    # The hook of the optimizer, and callbacks of autograd's engine: these have no original.
    for owner, name in ((Hooked, "optimizer_stepped"), *((_FinalBracket, n) for n in ("_queue", "_before", "_after"))):
        setattr(owner, name, watch.own(name, getattr(owner, name)))
    loop = Loop(arguments.arm != "alone")
    step = step_of(loop, arguments.arm)
    loop.run(50, step)
    watch.around_hooks()
    whyidle.attach()
    if Variable._execution_engine is not engine:  # the versions that do not replace it replace a function instead
        hooked = type(Variable._execution_engine)
        hooked.run_backward = watch.own("run_backward", hooked.run_backward)
    loop.run(600, step)  # until all groups exchange their waits
    watch.ns.clear()
    times = loop.run(arguments.steps, step)
    parts = {name: ns / 1000 / len(times) for name, ns in watch.ns.items()}
    calls = min(_calls(step) for _ in range(100))
    if int(os.environ.get("RANK", "0")) == 0:
        print(
            json.dumps({"step_us": statistics.median(times), "hooks_us": sum(parts.values()), "calls": calls, **parts})
        )
    if arguments.arm != "alone":
        torch.distributed.barrier()
        time.sleep(0.5)  # until the threads of gloo have dropped their tensors: torch 2.13 can hang otherwise
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
    parser.add_argument("--arm", choices=ARMS, default="alone", help="the loop (default: one process): see overhead.py")
    parser.add_argument("--rounds", type=int, default=5, help="jobs, one after the other (default: 5)")
    parser.add_argument("--steps", type=int, default=600, help="steps in each (default: 600)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return 0
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ARMS[arguments.arm]))
    launcher = () if arguments.arm == "alone" else torchrun
    own = ["--child", "--arm", arguments.arm, "--steps", str(arguments.steps)]
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
        environment = {"WHYIDLE_DIR": folder, "OMP_NUM_THREADS": "1"}
        for _ in range(arguments.rounds):
            said = start_child(*own, env=environment, launcher=launcher, script=Path(__file__).resolve())
            for name, value in json.loads(said).items():
                found[name].append(value)
    for name, values in found.items():
        print(f"{name:<24} {statistics.median(values):8.1f}   ({min(values):.1f} .. {max(values):.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
