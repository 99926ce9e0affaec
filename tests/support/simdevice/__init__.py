"""A simulated device for tests: real streams, real asynchrony, and a record of what really happened.

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
there. An idle stream passes an event at once. The streams' threads sleep until the wall clock has come that far, so the
host sees nothing finished early, but how loaded the machine is changes no duration. They have a higher priority than
the host's threads where the process may raise it: where it may not, they can get no CPU on a loaded machine, and the
host then sees things finished late. CPU kernels take no virtual time unless ``set_kernel_time`` says otherwise: a
stream is busy only with ``busy``, ``occupy``, copies that were given a time, and collectives.

What runs unmodified, with losses and parameters equal to the CPU's to the bit: DDP, FSDP1, FSDP2, HSDP, TP with DP,
GPipe and 1F1B, reentrant checkpoints, DCP, all collectives and messages. AMP, FSDP2's CPU offload, ZeRO and functional
collectives run too. What does not: LSTM and GRU (torch takes a fused cell that no CPU kernel has), ``device_id`` in
``init_process_group`` together with a mesh of several dimensions (groups cannot be split), and FSDP of a module that is
not on the device yet. Random operators repeat, but draw other numbers than the CPU's; attention uses torch's math
kernel.

Loading is for good: torch then takes ``sim`` for the accelerator. So tests load it in processes of their own.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .group import hang_next_collective as hang_next_collective
    from .group import release_hung_collectives as release_hung_collectives
    from .group import set_collective_time as set_collective_time
    from .spans import Entry as Entry
    from .spans import gaps as gaps
    from .spans import overlap as overlap
    from .spans import total as total
    from .spans import within as within
    from .truth import Graph as Graph
    from .truth import blame as blame
    from .truth import callers as callers
    from .truth import clear_schedule as clear_schedule
    from .truth import contexts as contexts
    from .truth import counters as counters
    from .truth import forget_contexts as forget_contexts
    from .truth import reset_counters as reset_counters
    from .truth import schedule as schedule
    from .work import Block as Block
    from .work import busy as busy
    from .work import occupy as occupy

_native: Any = None


def load() -> None:
    """Builds the device, if this source was never built with this torch, and registers it, once per process."""
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
    from . import spans, truth, work

    names = {**vars(spans), **vars(truth), **vars(work)}
    if torch.distributed.is_available():
        from . import group

        group.register()
        names.update(vars(group))
    globals().update({name: value for name, value in names.items() if not name.startswith("_")})
    # Threads of streams must not run while the interpreter and torch's globals are destroyed.
    atexit.register(_native.drain, 5.0)


def set_real_time(on: bool) -> None:
    """Whether a delay of a stream's thread of more than 1 ms counts as a delay in the schedule. Then the host sees the
    end of an event when it happens, so conclusions from an unfinished event are right."""
    _native.set_real_time(on)


def set_queue_limit(items: int) -> None:
    """How many items a stream's queue holds. A launch waits while the queue is full. The default is 1024."""
    _native.set_queue_limit(items)


def release_gil_when_full(on: bool) -> None:
    """Whether a launch that finds the queue full lets other Python threads run meanwhile. By default it does not, as
    with torch's generic Event.record(). torch releases the lock around operators and, in newer versions, around
    torch.cuda.Event.record()."""
    _native.release_gil_when_full(on)


def set_kernel_time(us: float) -> None:
    """How long an ordinary kernel takes on its stream. Negative: as long as it took on its thread."""
    _native.set_kernel_time(round(us * 1e3))


def set_copy_rate(gb_per_s: float) -> None:
    """The speed of copies between host and device. 0: they take no virtual time."""
    _native.set_copy_time(1.0 / gb_per_s if gb_per_s else 0.0)
