"""A simulated device for tests: real streams, real asynchrony, and a truth of its own.

``load()`` builds it and registers it with torch as ``sim``, with two device indices and the process group ``sim``. Then
torch's own DDP, FSDP, pipelines and so on run on it as on any accelerator::

    import simdevice
    simdevice.load()
    dist.init_process_group("cpu:gloo,sim:sim")
    simdevice.set_collective_time(4.0)
    model = DistributedDataParallel(nn.Sequential(*(simdevice.Block(32, 5, 10) for _ in range(4))).to("sim"))
    ...
    torch.accelerator.synchronize()
    home = simdevice.schedule(torch.accelerator.current_stream())
    exposed = simdevice.total(home, "wait", "rendezvous", "collective")

Time is virtual. An item of a stream starts at the latest of the end of the item before it, the host's time when it was
enqueued, and the events it waits for; it ends when its set duration is over. A collective starts when the last rank is
there. The streams' threads sleep until the wall clock has come that far, so the host sees nothing finished early, but how
loaded the machine is changes no duration. CPU kernels take no virtual time unless ``set_kernel_time`` says otherwise:
then a stream is busy only with ``busy``, ``occupy``, copies that were given a time, and collectives.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .group import hang_next_collective, release_hung_collectives, set_collective_time
    from .truth import (
        Entry,
        Graph,
        blame,
        callers,
        clear_schedule,
        contexts,
        counters,
        forget_contexts,
        gaps,
        overlap,
        reset_counters,
        schedule,
        total,
        within,
    )
    from .work import Block, busy, occupy

_native: Any = None


def load() -> None:
    """Builds the device, if this source was never built with this torch, and registers it. Once per process."""
    global _native
    if _native is not None:
        return
    import torch

    from . import build

    torch.utils.rename_privateuse1_backend("sim")
    _native = build.load()
    from . import module

    torch._register_device_module("sim", module)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    from . import truth, work

    names = {**vars(truth), **vars(work)}
    if torch.distributed.is_available():
        from . import group

        group.register()
        names.update(vars(group))
    globals().update({name: value for name, value in names.items() if not name.startswith("_")})
    # Streams' threads must not run while the interpreter and torch's globals go.
    atexit.register(_native.drain, 10.0)


def set_queue_limit(items: int) -> None:
    """How many items a stream's queue holds; a launch that finds it full waits. 1024 at first."""
    _native.set_queue_limit(items)


def release_gil_when_full(on: bool) -> None:
    """Whether a launch that finds the queue full lets other Python threads run meanwhile. At first it does not, as with
    CUDA: torch releases the lock around operators, and not around Event.record()."""
    _native.release_gil_when_full(on)


def set_kernel_time(us: float) -> None:
    """How long an ordinary kernel takes its stream; negative: as long as it took its thread."""
    _native.set_kernel_time(round(us * 1e3))


def set_copy_rate(gb_per_s: float) -> None:
    """How fast copies between host and device are; 0: they take no virtual time."""
    _native.set_copy_time(1.0 / gb_per_s if gb_per_s else 0.0)
