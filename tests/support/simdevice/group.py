"""The process group ``sim``: collectives on streams of the device, which meet other ranks through gloo."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_C: Any = sys.modules["_simdevice"]
_numbers = itertools.count()
_NICE = -10


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    inner = dist.PrefixStore("simulated device", store)
    before = set(os.listdir("/proc/self/task"))
    gloo = dist.ProcessGroupGloo(inner, rank, size, timeout)
    for thread in set(os.listdir("/proc/self/task")) - before:
        _hurry(int(thread))
    return _C.make_group(gloo, f"group {next(_numbers)}")


def _hurry(thread: int) -> None:
    """Lets a thread have a CPU before the host's threads, as those of streams: see stream.cpp."""
    try:
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, _NICE)


def register() -> None:
    dist.Backend.register_backend("sim", _create, devices=["sim"])


def _backend(group: dist.ProcessGroup | None) -> Any:
    return (group or dist.group.WORLD)._get_backend(torch.device("sim"))  # pyright: ignore


def set_collective_time(ms: float, group: dist.ProcessGroup | None = None, gb_per_s: float = 0.0) -> None:
    """How long a transfer takes after all ranks have arrived: ``ms`` plus, if given, its bytes over ``gb_per_s``.
    Without a group: for all groups without their own time, including later ones. Applies to collectives issued from now
    on. If ranks differ, the longest time is used."""
    rate = 1.0 / gb_per_s if gb_per_s else 0.0
    if group is None:
        _C.set_default_time(round(ms * 1e6), rate)
    else:
        _C.set_time(_backend(group), round(ms * 1e6), rate)


def hang_next_collective(group: dist.ProcessGroup | None = None) -> None:
    """This rank's next collective or message in the group never arrives. Streams wait, hosts continue. A process that
    ends meanwhile takes 5 s for it."""
    _C.hang_next(_backend(group))


def release_hung_collectives() -> None:
    _C.release_hung()
