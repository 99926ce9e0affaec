"""One rank whose watcher ends last: `ending.py FOLDER`. Prints how many events the hooks made, and the threads that
destroyed them while the script ran."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import simdevice
import torch

import whyidle
from whyidle.torch_hooks.watcher import Watcher

STEPS = 20
SLOW = 0.5
"""Seconds for which the watcher still runs after it was told to stop: longer than the session waits for it."""


def main(folder: Path) -> None:
    simdevice.load()
    os.environ["WHYIDLE_DIR"], os.environ["WHYIDLE_RUN"] = str(folder), "ending"
    module: Any = torch.get_device_module("sim")
    make, watch = module.Event, Watcher._run
    made: list[weakref.ref[Any]] = []
    destroyers: set[str] = set()

    def destroyed(_: weakref.ref[Any]) -> None:
        destroyers.add(threading.current_thread().name)

    def observed(*arguments: Any, **options: Any) -> Any:
        event = make(*arguments, **options)
        made.append(weakref.ref(event, destroyed))
        return event

    def end_late(watcher: Watcher, running: threading.Lock) -> None:
        watch(watcher, running)
        time.sleep(SLOW)

    module.Event, Watcher._run = observed, end_late  # type: ignore[method-assign]
    assert whyidle.attach()
    model = torch.nn.Linear(4, 4).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        model(torch.ones(1, 4).to("sim")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.accelerator.synchronize()
    whyidle.detach()
    for thread in threading.enumerate():
        if thread.name.startswith("whyidle-"):
            thread.join()
    print(len(made), *sorted(destroyers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
