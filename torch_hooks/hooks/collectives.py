"""Waits in collectives, and how much they carry.

``Work.wait`` sees every wait that passes through Python. What does not: DDP's reducer (hooks/backward.py), compiled
collectives (they are compute), and NCCL's synchronous ones, which run on the current stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..machine import COLLECTIVE, NOT_ENTERED
from ..patching import Absent, Patches

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session


def _distributed() -> Any:
    import torch.distributed as distributed

    if not distributed.is_available():
        raise Absent("torch.distributed")
    return distributed


def install_work_wait(session: Session) -> Callable[[], None]:
    _distributed()
    import torch
    from torch._C import _distributed_c10d as c10d

    patches = Patches()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            old = session.collective_begins()
            try:
                return original(work, *args, **kwargs)
            finally:
                session.machine.leave(old)

        return wait

    patches.replace(c10d.Work, "wait", make)
    # What work.get_future() gives; comm hooks and remote calls wait for it.
    patches.replace(torch._C.Future, "wait", make)
    session.state("work_wait", "active")
    return patches.undo


def install_functional_wait(session: Session) -> Callable[[], None]:
    """Functional collectives wait in an operator of their own, which DTensor and tensor parallelism use.

    Which ranks take part is known only where their group is resolved. A wait for one that was not seen there cannot be
    compared with the other ranks'.
    """
    patches = Patches()

    def patch(module: ModuleType) -> None:
        patches.replace(module, "wait_tensor", _functional_wait(session))
        # Their name since 2025, and before.
        resolve = "_resolve_group" if hasattr(module, "_resolve_group") else "_resolve_group_name"
        patches.replace(module, resolve, _resolving(session))
        session.state("functional_wait", "active")

    patches.when_imported("torch.distributed._functional_collectives", patch)

    return patches.undo


def _functional_wait(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from torch.compiler import is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait_tensor(tensor: Any) -> Any:
            if is_compiling():
                return original(tensor)
            if session.resolved:
                session.resolved -= 1
            else:
                session.mixed = True
            old = session.collective_begins()
            try:
                return original(tensor)
            finally:
                session.machine.leave(old)

        return wait_tensor

    return make


def _resolving(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from torch.compiler import is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _resolve_group(*args: Any, **kwargs: Any) -> Any:
            group = original(*args, **kwargs)
            if not is_compiling():
                try:
                    session.resolved += 1
                    if _members(group) != session.world_size:
                        session.mixed = True
                except Exception as error:  # the fence around the training
                    session.fault("functional_wait", error)
            return group

        return _resolve_group

    return make


def _members(group: Any) -> int:
    if isinstance(group, str):
        from torch._C import _distributed_c10d as c10d

        group = c10d._resolve_process_group(group)  # pyright: ignore[reportArgumentType] - a NewType of str
    return group.size()


def _size(value: Any) -> int:
    """Bytes of a tensor, or of all tensors in (lists of) lists."""
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return value.numel() * value.element_size()


_METHODS: dict[str, tuple[str, int]] = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce", 0),
    "allgather": ("all_gather", 0),
    "allgather_coalesced": ("all_gather", 0),
    "_allgather_base": ("all_gather", 0),
    "allgather_into_tensor_coalesced": ("all_gather", 0),
    "all_gather_single": ("all_gather", 0),
    "all_gather_single_coalesced": ("all_gather", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 1),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "send": ("send", 0),
    "recv": ("recv", 0),
    "recv_anysource": ("recv", 0),
    "barrier": ("barrier", -1),
}
"""Method of ProcessGroup -> (operation, which argument carries its size; -1: none).

Sizes are those of nccl-tests: what is reduced, all that was gathered, all that is scattered; of `gather` and `scatter`
this rank's share.
"""

_PAIRWISE = frozenset({"send", "recv"})


def install_process_group(session: Session) -> Callable[[], None]:
    _distributed()
    from torch._C import _distributed_c10d as c10d

    patches = Patches()
    for method, (op, sized) in _METHODS.items():
        if hasattr(c10d.ProcessGroup, method):
            patches.replace(c10d.ProcessGroup, method, _counting(session, op, sized))
    session.state("process_group", "active")
    return patches.undo


def _counting(session: Session, op: str, sized: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            old = NOT_ENTERED
            try:
                if session.asleep:
                    session.wake()
                session.count_collective(op, _size(args[sized]) if 0 <= sized < len(args) else 0)
                if op in _PAIRWISE or group.size() != session.world_size:
                    session.mixed = True
                # Since mid-2025 a synchronous NCCL collective runs on the current stream and returns no work to wait
                # for: the call itself is what the device waits in.
                if session.machine.device is not None and _on_current_stream(args, kwargs):
                    old = session.machine.enter(COLLECTIVE)
            except Exception as error:  # the fence around the training
                session.fault("process_group", error)
            try:
                return original(group, *args, **kwargs)
            finally:
                session.machine.leave(old)

        return call

    return make


def _on_current_stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    options = kwargs.get("opts", args[-1] if args else None)
    return getattr(options, "asyncOp", True) is False
