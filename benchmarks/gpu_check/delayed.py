"""A process group of two ranks in one process. Its collectives take a set time on a separate stream.

The data of the other rank is a copy of this rank's data. The delay must be below whyidle's wrappers: call ``install``
before ``whyidle.attach()``, which then wraps the methods that are installed here.

torch (up to 2.13) lets Python implement a ProcessGroup and not a Backend. A method that Python defines on a subclass
hides the one that whyidle wraps. So most methods are put into ProcessGroup itself. Methods that C++ calls too (DDP's
reducer does) are on the subclass, and find out whether Python or C++ calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._C._distributed_c10d
import torch.distributed as dist

from .rig import Pairs, Rig

c10d: Any = torch._C._distributed_c10d  # the type stubs are incomplete
NAME = "delayed"
RANKS = 2


class Link:
    """The time that collectives take (``ms``), and the time that they took (``took``)."""

    def __init__(self, rig: Rig):
        self.rig = rig
        self.ms = 0.0
        self.stream = rig.stream()
        self.took = Pairs(rig)

    def carry(self, copies: Callable[[], None], tensors: list[Any], options: Any) -> Any:
        """Runs a collective. Returns its work, or None for a synchronous one, as NCCL does since 2025."""
        rig = self.rig
        if getattr(options, "asyncOp", True) is False:
            self._take(copies)
            return None
        self.stream.wait_stream(rig.current_stream())
        future = torch.futures.Future(devices=[rig.device])
        with rig.on(self.stream):
            self._take(copies)
            for tensor in tensors:
                rig.keep(tensor, self.stream)
            future.set_result(tensors)
        return c10d._create_work_from_future(future)

    def _take(self, copies: Callable[[], None]) -> None:
        if self.ms:
            begun = self.rig.mark()
            self.rig.sleep(self.ms)
            self.took.add(begun, self.rig.mark())
        copies()


_link: Link | None = None


class Delayed(dist.ProcessGroup):
    """A process group of two ranks. This process is rank 0."""

    def __init__(self, rank: int, size: int):
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        self._size = size

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return NAME

    @property
    def pg_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    @property
    def group_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]


def install(rig: Rig) -> Link:
    """Installs the delayed collectives, and makes the process group if there is none."""
    global _link
    if _link is None:
        _link = Link(rig)
        for name, collective in _COLLECTIVES.items():
            if hasattr(c10d.ProcessGroup, name):
                setattr(c10d.ProcessGroup, name, _below(getattr(c10d.ProcessGroup, name), collective))
                if name in _FROM_CPP:
                    setattr(Delayed, name, _entry(name, collective))
        dist.Backend.register_backend(NAME, lambda store, rank, size, timeout: Delayed(rank, size), devices=[rig.kind])
    if not dist.is_initialized():
        dist.init_process_group(NAME, store=dist.HashStore(), rank=0, world_size=RANKS)
    return _link


def _below(original: Callable[..., Any], collective: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(group, Delayed):
            return collective(group, *args, **kwargs)
        return original(group, *args, **kwargs)

    return call


def _entry(name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls the wrapped method if Python calls it, as any process group does, and skips it for C++."""

    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        if _python_calls():
            return getattr(c10d.ProcessGroup, name)(group, *args, **kwargs)
        work = collective(group, *args, **kwargs)
        if work is None:  # C++ needs a work
            future = torch.futures.Future(devices=[_now().rig.device])
            future.set_result([])
            work = c10d._create_work_from_future(future)
        return work

    return call


def _python_calls() -> bool:
    """Whether the caller of this function was called by torch's Python code, and not by its C++ code."""
    try:
        return "distributed/distributed_c10d" in sys._getframe(2).f_code.co_filename
    except ValueError:  # a thread of autograd
        return False


def _now() -> Link:
    assert _link is not None
    return _link


# -- the collectives. The results are right if all ranks send the same data.


def _reduce(tensors: list[torch.Tensor], options: Any) -> None:
    if getattr(options, "reduceOp", dist.ReduceOp.SUM) == dist.ReduceOp.SUM:
        for tensor in tensors:
            tensor.mul_(RANKS)


def _allreduce(group: Any, tensors: Any, opts: Any = None, *_: Any) -> Any:
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    return _now().carry(lambda: _reduce(tensors, opts), tensors, opts)


def _broadcast(group: Any, tensors: Any, opts: Any = None, *_: Any) -> Any:
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    return _now().carry(lambda: None, tensors, opts)


def _allgather(group: Any, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
    def copies() -> None:
        for parts, mine in zip(outputs, inputs, strict=True):
            for part in parts:
                part.copy_(mine)

    return _now().carry(copies, [*inputs, *(part for parts in outputs for part in parts)], opts)


def _gather_whole(group: Any, output: torch.Tensor, mine: torch.Tensor, opts: Any = None, *_: Any) -> Any:
    def copies() -> None:
        for part in output.view(-1).chunk(RANKS):
            part.copy_(mine.view(-1))

    return _now().carry(copies, [output, mine], opts)


def _scatter_whole(group: Any, output: torch.Tensor, mine: torch.Tensor, opts: Any = None, *_: Any) -> Any:
    def copies() -> None:
        output.view(-1).copy_(mine.view(-1).chunk(RANKS)[0])
        _reduce([output], opts)

    return _now().carry(copies, [output, mine], opts)


def _barrier(group: Any, opts: Any = None, *_: Any) -> Any:
    return _now().carry(lambda: None, [], None)


_COLLECTIVES: dict[str, Callable[..., Any]] = {
    "allreduce": _allreduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    # The names in torch 2.13, and the older names.
    "all_gather_single": _gather_whole,
    "_allgather_base": _gather_whole,
    "reduce_scatter_single": _scatter_whole,
    "_reduce_scatter_base": _scatter_whole,
    "barrier": _barrier,
}
_FROM_CPP = ("allreduce", "broadcast", "allgather", "barrier")
