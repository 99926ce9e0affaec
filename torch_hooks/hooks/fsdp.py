"""Records FSDP's waits on accelerators. There, FSDP makes the current stream wait for events instead of using
``Work.wait``.

The copy out of a gathered parameter and the accumulation of a gradient are in the same functions as the waits, but they
are compute and must not count as waits. If a function begins with a wait, the hook does the same wait once more before
the function. Elsewhere the hook replaces the function's device handle: the current stream of the replacement notifies
the session of each wait.

A wait is one boundary: the event that FSDP waits for has timing (`timed_events.py`) and tells when the wait ended. If
the event has no timing, the wait is bracketed by two boundaries.

On a CPU rank FSDP waits in ``Work.wait``, and these hooks do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..machine import NOT_ENTERED
from ..patching import Patches
from .timed_events import TimedEvents

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_FSDP2 = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",  # torch 2.4 and 2.5
)
_FSDP1 = (
    "torch.distributed.fsdp._runtime_utils",
    "torch.distributed.fsdp.fully_sharded_data_parallel",  # imports some of those functions by name
)
_FSDP1_FUNCTIONS = ("_pre_forward_unshard", "_pre_backward_hook", "_post_backward_final_callback")


class _Handle:
    """Replaces a device handle: passes on everything, and notifies the session of each wait of its current stream.

    ``group_of``: the event or stream that the current stream waits for -> the process group of that wait.
    """

    __slots__ = ("_group_of", "_handle", "_hook", "_session", "timed")

    def __init__(self, handle: Any, session: Session, hook: str, timed: TimedEvents, group_of: Callable[[Any], Any]):
        self._handle = handle
        self._session = session
        self._hook = hook
        self._group_of = group_of
        self.timed = timed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def current_stream(self, *args: Any) -> Any:
        return _Stream(self._handle.current_stream(*args), self)

    def wait_until(self, event: Any, awaited: Any) -> None:
        """The current stream is about to wait for ``event``, instead of ``awaited``, an event or a stream."""
        try:
            self._session.wait_until(self._group_of(awaited), event)
        except Exception as error:  # the fence around the training
            self._session.fault(self._hook, error)

    def wait_begins(self, event: Any) -> int:
        try:
            return self._session.wait_in(self._group_of(event))
        except Exception as error:  # the fence around the training
            return self._session.fault(self._hook, error)

    def wait_ends(self, old: int) -> None:
        self._session.machine.leave_wait(old)


class _Stream:
    """Replaces the current stream of such a handle."""

    __slots__ = ("_handle", "_stream")

    def __init__(self, stream: Any, handle: _Handle):
        self._stream = stream
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def wait_event(self, event: Any) -> Any:
        if event in self._handle.timed:
            self._handle.wait_until(event, event)
            return self._stream.wait_event(event)
        old = self._handle.wait_begins(event)
        try:
            return self._stream.wait_event(event)
        finally:
            self._handle.wait_ends(old)

    def wait_stream(self, stream: Any) -> Any:
        if stream == self._stream:
            return self._stream.wait_stream(stream)
        event = self._handle.timed.recorded_on(stream)
        if event is not None:
            self._handle.wait_until(event, stream)
            return self._stream.wait_event(event)
        old = self._handle.wait_begins(stream)
        try:
            return self._stream.wait_stream(stream)
        finally:
            self._handle.wait_ends(old)


def _with_stand_in(owner: Any, name: str, stand_in: _Handle, call: Callable[[], Any]) -> Any:
    handle = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        return call()
    finally:
        setattr(owner, name, handle)


# -- FSDP2


def install_fsdp2(session: Session) -> Callable[[], None]:
    patches = Patches()
    timed = TimedEvents(session, "fsdp2", patches)

    def patch(module: ModuleType) -> None:
        group = getattr(module, "FSDPParamGroup", None)
        if group is None:
            return
        for name, make in (
            ("wait_for_unshard", _around_unshard(session, timed)),
            ("post_backward", _around_reductions(session, timed)),
            ("finalize_backward", _around_last_reductions(session, timed)),
        ):
            if hasattr(group, name):
                patches.replace(group, name, make)
        session.state("fsdp2", "active")

    for name in _FSDP2:
        patches.when_imported(name, patch)

    return patches.undo


def _on_device(session: Session) -> bool:
    from ..compiling import is_compiling

    return session.machine.device is not None and not is_compiling()


def _around_unshard(session: Session, timed: TimedEvents) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait_for_unshard(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            if _on_device(session):
                timed.of(_streams(group))
                _wait_before(session, timed, group, _gathered, _gathers_in)
            return original(group, *args, **kwargs)

        return wait_for_unshard

    return make


def _around_reductions(session: Session, timed: TimedEvents) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def post_backward(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not _on_device(session) or not hasattr(group, "device_handle"):
                return original(group, *args, **kwargs)
            handle, reduces_in = group.device_handle, lambda event: _reduces_in(group, event)
            stand_in = _Handle(handle, session, "fsdp2", timed, reduces_in)
            return _with_stand_in(group, "device_handle", stand_in, lambda: original(group, *args, **kwargs))

        return post_backward

    return make


def _around_last_reductions(session: Session, timed: TimedEvents) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    around = _around_reductions(session, timed)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        inner = around(original)

        def finalize_backward(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            if _on_device(session):
                _wait_before(session, timed, group, _last_scatter, _scatters_in)
            return inner(group, *args, **kwargs)

        return finalize_backward

    return make


def _wait_before(
    session: Session,
    timed: TimedEvents,
    group: Any,
    event_of: Callable[[Any], Any],
    process_group_of: Callable[[Any], Any],
) -> None:
    """Makes the current stream wait for an event for which FSDP makes it wait next anyway, and records that wait."""
    old = NOT_ENTERED
    try:
        event = event_of(group)
        if event is not None:
            if event in timed:
                session.wait_until(process_group_of(group), event)
            else:
                old = session.wait_in(process_group_of(group))
            group.device_handle.current_stream().wait_event(event)
    except Exception as error:  # the fence around the training
        session.fault("fsdp2", error)
    finally:
        session.machine.leave_wait(old)


def _streams(group: Any) -> list[Any]:
    """The streams on which FSDP records the events that it waits for. It creates them before its first forward pass."""
    names = ("all_gather_stream", "reduce_scatter_stream", "all_reduce_stream")
    return [getattr(group.comm_ctx, name, None) for name in names]


def _gathered(group: Any) -> Any:
    """The event after which the parameters are gathered; None if FSDP waits for a work instead, or not at all."""
    result = getattr(group, "_all_gather_result", None)
    # If there is a work, the event was recorded on the current stream itself.
    return None if getattr(result, "all_gather_work", None) is not None else getattr(result, "all_gather_event", None)


def _reduces_in(group: Any, event: Any) -> Any:
    """The process group of the reduction of gradients that ends with ``event``."""
    # torch 2.13 forgets the state of a reduce-scatter before it waits for its event. So all-reduces are compared.
    if _replicates(group) and any(reduced is event for reduced in _all_reduced(group)):
        return group._all_reduce_process_group
    return _scatters_in(group)


def _all_reduced(group: Any) -> list[Any]:
    """With replicas: the events after all-reduces for which FSDP makes the current stream wait later."""
    events = [getattr(group, name, None) for name in ("_post_reduce_event", "_post_reduce_view_out_event")]
    events.append(getattr(getattr(group, "_all_reduce_state", None), "event", None))
    events += (getattr(group.comm_ctx, "_last_post_reduce_events", None) or {}).values()
    return [event for event in events if event is not None]


def _last_scatter(group: Any) -> Any:
    """With replicas: the event of the last reduce-scatter, before an all-reduce. None if nothing is in progress."""
    states = _scatter_states(group)
    return getattr(states[-1], "event", None) if states and _replicates(group) and _all_reduced(group) else None


def _scatter_states(group: Any) -> Any:
    """The states of the reduce-scatters that FSDP keeps. Until torch 2.9 it kept only one at a time."""
    context = group.comm_ctx
    states = getattr(context, "reduce_scatter_states", None)
    if states is not None:
        return states
    state = getattr(context, "reduce_scatter_state", None)
    return [] if state is None else [state]


def _replicates(group: Any) -> bool:
    return getattr(group.mesh_info, "replicate_process_group", None) is not None


def _gathers_in(group: Any) -> Any:
    return getattr(group, "_all_gather_process_group", None) or group.mesh_info.mesh.get_group()


def _scatters_in(group: Any) -> Any:
    if getattr(group.mesh_info, "shard_process_group", None) is None:
        return group._all_reduce_process_group
    return getattr(group, "_reduce_scatter_process_group", None) or _gathers_in(group)


# -- FSDP1


def install_fsdp1(session: Session) -> Callable[[], None]:
    patches = Patches()
    timed = TimedEvents(session, "fsdp1", patches)

    def patch(module: ModuleType) -> None:
        for name in _FSDP1_FUNCTIONS:
            if hasattr(module, name):
                patches.replace(module, name, _in_state(session, timed))
        session.state("fsdp1", "active")

    for name in _FSDP1:
        patches.when_imported(name, patch)

    return patches.undo


def _in_state(session: Session, timed: TimedEvents) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps a function of FSDP1. Its first argument is the state that has the device handle."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(state: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not _on_device(session) or not hasattr(state, "_device_handle"):
                return original(state, *args, **kwargs)

            handle, awaited_in = state._device_handle, lambda awaited: _awaited_in(state, awaited)
            stand_in = _Handle(handle, session, "fsdp1", timed, awaited_in)
            return _with_stand_in(state, "_device_handle", stand_in, lambda: original(state, *args, **kwargs))

        return call

    return make


def _awaited_in(state: Any, stream: Any) -> Any:
    """The process group in which a stream of FSDP1 communicates; ``stream`` may also be an event of the all-gathers."""
    replicas = getattr(state, "_inter_node_pg", None)
    return replicas if replicas is not None and stream is state._all_reduce_stream else state.process_group
