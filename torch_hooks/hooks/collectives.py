"""Records waits in collectives, and the bytes of the collectives.

``Work.wait`` sees every wait that goes through Python. These do not: waits of DDP's reducer (hooks/backward.py),
compiled collectives (they count as compute), and NCCL's synchronous collectives, which run on the current stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ledger.causes import COLLECTIVE_OP
from ..machine import NOT_ENTERED
from ..patching import NothingToHook, Patches
from ..wait_codes import FIRST_WAIT, UNKNOWN_WAIT, Issue, Issues, WaitCode
from .dynamo import skip

if TYPE_CHECKING:
    from ..session import Session


def _distributed() -> Any:
    import torch.distributed as distributed

    if not distributed.is_available():
        raise NothingToHook("torch.distributed")
    return distributed


def install_work_wait(session: Session) -> Callable[[], None]:
    _distributed()
    import torch
    from torch._C import _distributed_c10d as c10d

    patches = Patches()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, /, *args: Any, **kwargs: Any) -> Any:
            old = session.wait_for(work)
            try:
                return original(work, *args, **kwargs)
            finally:
                if old != NOT_ENTERED:
                    session.machine.leave_wait(old)

        return wait

    def make_get_future(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_future(work: Any) -> Any:
            future = original(work)
            try:
                exchange = session.exchange
                issue = exchange.groups.issue_of(work) if exchange is not None else None
                if exchange is not None and issue is not None:
                    exchange.groups.issued(future, *issue)
            except Exception as error:  # the fence around the training
                session.fault("work_wait", error)
            return future

        return get_future

    patches.replace(c10d.Work, "wait", make)
    # work.get_future() returns such a future. Communication hooks and remote calls wait for it.
    patches.replace(torch._C.Future, "wait", make)
    patches.replace(c10d.Work, "get_future", make_get_future)
    session.state("work_wait", "active")
    return patches.undo


def size_of(value: Any) -> int:
    """The bytes of a tensor, or of all tensors in (nested) lists."""
    if isinstance(value, (list, tuple)):
        if len(value) != 1 or isinstance(value[0], (list, tuple)):
            return sum(map(size_of, value))
        (value,) = value
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
"""Method of ProcessGroup -> (operation, index of the argument that has its size; -1: none).

Sizes are those of nccl-tests: all bytes that are reduced, gathered or scattered. For `gather` and `scatter`, this
rank's part.
"""

_PEER: dict[str, int | None] = {"send": 1, "recv": 1, "recv_anysource": None}
"""Method of ProcessGroup with a single peer -> index of the argument that has the peer, as a rank of the group."""


def install_process_group(session: Session) -> Callable[[], None]:
    _distributed()
    from torch._C import _distributed_c10d as c10d

    patches = Patches()
    for method, (op, sized) in _METHODS.items():
        if not hasattr(c10d.ProcessGroup, method):
            continue
        index = COLLECTIVE_OP[op]
        if method in _PEER:
            make = _counting_messages(session, index, _PEER[method])
        else:
            make = _counting(session, index, sized)
        patches.replace(c10d.ProcessGroup, method, _named(method, make))
    if hasattr(c10d.ProcessGroup, "_end_coalescing"):
        patches.replace(c10d.ProcessGroup, "_start_coalescing", _begin_coalescing(session))
        patches.replace(c10d.ProcessGroup, "_end_coalescing", _end_coalescing(session))
    if hasattr(c10d.ProcessGroup, "monitored_barrier"):
        patches.replace(c10d.ProcessGroup, "monitored_barrier", _around_barrier(session))
    session.state("process_group", "active")
    return patches.undo


def _named(method: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """A class of Python may inherit from ProcessGroup, and its method may call that of the base. Then pybind11
    (get_override) calls the class's method again, unless the frame that calls has the name of the method."""

    def named(original: Callable[..., Any]) -> Any:
        call: Any = make(original)
        call.__code__ = call.__code__.replace(co_name=method)
        skip(call.__code__)
        return call

    return named


def _counting(session: Session, op: int, sized: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Counts a collective when it is issued, and remembers its work."""

    blocks = op == COLLECTIVE_OP["barrier"]  # NCCL waits for it with cudaStreamSynchronize

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            old = NOT_ENTERED
            code, groups, here = UNKNOWN_WAIT, None, False
            try:
                if session.asleep:
                    session.wake()
                code = session.code_of(group)
                session.count_collective(op, size_of(args[sized]) if 0 <= sized < len(args) else 0, code)
                exchange = session.exchange
                if exchange is not None:
                    groups = exchange.groups
                    if groups.coalesced is not None:
                        groups.coalesced.append((code, ()))
                # Since mid-2025, a synchronous NCCL collective runs on the current stream and returns no work to wait
                # for. So the device waits in the call itself.
                if session.machine.device is not None and (here := _on_current_stream(args, kwargs)):
                    old = session.wait_begins(code, blocks=blocks)
                elif code == FIRST_WAIT:
                    old = session.wait_begins(code)  # it connects the members
            except Exception as error:  # the fence around the training
                session.fault("process_group", error)
            if old == NOT_ENTERED:
                work = original(group, *args, **kwargs)
            else:
                try:
                    work = original(group, *args, **kwargs)
                finally:
                    session.machine.leave_wait(old)
            if work is not None and groups is not None:
                try:
                    groups.issued(work, code, (), not here, blocks)
                except Exception as error:  # the fence around the training
                    session.fault("process_group", error)
            return work

        return call

    return make


def _counting_messages(
    session: Session, op: int, peer_at: int | None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like ``_counting``, for a send or receive. ``peer_at``: the index of the argument that has the peer."""
    sent = op == COLLECTIVE_OP["send"]

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            code, issues, groups = UNKNOWN_WAIT, (), None
            try:
                if session.asleep:
                    session.wake()
                peer = args[peer_at] if peer_at is not None and peer_at < len(args) else -1
                code = session.code_of(group, True, peer)
                session.count_collective(op, size_of(args[0]) if args else 0, code)
                groups = session.exchange.groups if session.exchange is not None else None
                issues = (Issue(groups.peer_of(group, peer) if groups and peer >= 0 else -1, sent),)
                if groups is not None and groups.coalesced is not None:
                    groups.coalesced.append((code, issues))
                else:
                    session.machine.issue(issues)
            except Exception as error:  # the fence around the training
                session.fault("process_group", error)
            work = original(group, *args, **kwargs)
            if work is not None and groups is not None:
                try:
                    groups.issued(work, code, issues)
                except Exception as error:  # the fence around the training
                    session.fault("process_group", error)
            return work

        return call

    return make


def _begin_coalescing(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _start_coalescing(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            if session.exchange is not None and session.machine.admits():
                session.exchange.groups.coalesced = []
            return original(group, *args, **kwargs)

        return _start_coalescing

    return make


def _end_coalescing(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The collected calls are issued now, with a single wait. It gets the code of the first receive, if there is one,
    otherwise that of the first call."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def end(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            gathered: list[tuple[WaitCode, Issues]] = []
            issues: Issues = ()
            groups = session.exchange.groups if session.exchange is not None else None
            try:
                if groups is not None and groups.coalesced is not None and session.machine.admits():
                    gathered, groups.coalesced = groups.coalesced, None
                    issues = tuple(issue for _, each in gathered for issue in each)
                    session.machine.issue(issues)
            except Exception as error:  # the fence around the training
                session.fault("process_group", error)
            work = original(group, *args, **kwargs)
            try:
                if work is not None and groups is not None and gathered:
                    codes = [code for code, each in gathered if each and not each[0].sent] or [gathered[0][0]]
                    groups.issued(work, codes[0], issues)
            except Exception as error:  # the fence around the training
                session.fault("process_group", error)
            return work

        return end

    return make


def _around_barrier(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Brackets a barrier that waits in the call itself."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def monitored_barrier(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            session.count_collective(COLLECTIVE_OP["barrier"], 0, UNKNOWN_WAIT)
            old = session.wait_in(group)
            try:
                return original(group, *args, **kwargs)
            finally:
                session.machine.leave_wait(old)

        return monitored_barrier

    return make


def _on_current_stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    options = kwargs.get("opts", args[-1] if args else None)
    return getattr(options, "asyncOp", True) is False
