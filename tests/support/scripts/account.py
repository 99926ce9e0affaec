"""What a training script records about itself, to compare with what was recorded from outside. It does not use whyidle.

Import it first: then its exit handler runs last, and takes the time at which the process ends. Writes
``$ACCOUNT_DIR/<pid>.json``.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
from collections import Counter
from typing import Any

counts: Counter[str] = Counter()
"""steps, backwards, batches, eval_batches, samples, saves, loads, and bytes per collective operation."""
losses: dict[str, list[str]] = {}
spans: dict[str, tuple[int, int, int]] = {}
"""Scenario -> CLOCK_MONOTONIC, ns, at its start and end; and its steps."""
facts: dict[str, Any] = {}
kept: list[Any] = []
"""Tensors that outlive the process group. Torch can hang where it destroys a group whose thread still has to drop the
last reference to a tensor of Python: both need the interpreter's lock."""


def let_gloo_finish() -> None:
    """Call it between a barrier and the end of a process group. In torch 2.4, the end waits for gloo's threads while it
    holds the interpreter's lock, and a thread that is releasing a tensor of Python waits for that lock. After a barrier
    they have released theirs, except for a thread that has got no CPU since."""
    if sys.modules["torch"].__version__.startswith("2.4."):
        time.sleep(0.5)


def loss(scenario: str, value: Any) -> None:
    losses.setdefault(scenario, []).append(float(value.detach() if hasattr(value, "detach") else value).hex())


class scenario:
    """``with scenario("name"):`` notes when it ran, and how many steps it made."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        self.start, self.steps = time.monotonic_ns(), counts["steps"]

    def __exit__(self, *_: object) -> None:
        spans[self.name] = (self.start, time.monotonic_ns(), counts["steps"] - self.steps)


def _write() -> None:
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        facts["graph_breaks"] = sum(dynamo.counters["graph_break"].values())
        facts["graphs"] = dynamo.counters["stats"]["unique_graphs"]
        times = dynamo.compilation_time_metrics.items()  # seconds of each part
        facts["compile_seconds"] = sum(sum(each) for part, each in times if part.endswith("compile_inner"))
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    told = {
        "pid": os.getpid(),
        "rank": int(os.environ.get("RANK", facts.get("rank", 0))),
        "counts": dict(counts),
        "losses": losses,
        "spans": spans,
        "facts": facts,
        "start_ticks": ticks,
    }
    path = os.path.join(os.environ["ACCOUNT_DIR"], f"{os.getpid()}.json")
    text = json.dumps(told)[:-1] + ', "boottime_ns": %d}'
    with contextlib.suppress(OSError):  # as root: no other process gets the CPU between this and the end of the process
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with open(path, "wb", buffering=0) as file:
        file.write((text % time.clock_gettime_ns(time.CLOCK_BOOTTIME)).encode())


atexit.register(_write)
