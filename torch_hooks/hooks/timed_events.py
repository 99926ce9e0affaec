"""Gives timing to events of the training, so that they tell when a wait for them ended.

FSDP records an event on its own stream after each collective, and makes the current stream wait for it. These events
have no timing. This module replaces them by events with timing (`Event(enable_timing=True)`). There is still one event
per wait, at the same place in the same stream, and no other event is recorded on that stream.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..patching import MARK, Patches

if TYPE_CHECKING:
    from ..session import Session

_TIMED = "_whyidle_timed"
"""Marks such an event. torch 2.11 does not clear weak references to a `torch.cuda.Event`, and crashes later."""


class TimedEvents:
    """The events of some streams of the training. They have timing while the clock of an accelerator runs."""

    def __init__(self, session: Session, hook: str, patches: Patches):
        self._session = session
        self._hook = hook
        self._patches = patches
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # those that cannot be marked: of type torch.Event

    def __contains__(self, event: Any) -> bool:
        return hasattr(event, _TIMED) or (bool(self._known) and event in self._known)

    def of(self, streams: Iterable[Any]) -> None:
        """From now on, events that these streams record have timing. It may be called repeatedly."""
        for stream in streams:
            # A stream without a __dict__ is a C++ type whose methods cannot be replaced. Waits for it are bracketed.
            if hasattr(stream, "__dict__") and not hasattr(stream.record_event, MARK):
                self._patches.replace(
                    stream, "record_event", lambda original, stream=stream: self._wrap(stream, original)
                )

    def recorded_on(self, stream: Any) -> Any:
        """Records an event with timing on a stream, as `wait_stream` does; None if it cannot have timing."""
        event = self._new(stream)
        if event is not None:
            stream.record_event(event)
        return event

    def _wrap(self, stream: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def record_event(event: Any = None) -> Any:
            if event is None:
                event = self._new(stream)
            return original() if event is None else original(event)

        return record_event

    def _new(self, stream: Any) -> Any:
        if self._session.machine.device is None:
            return None
        try:
            import torch

            event = torch.get_device_module(stream.device).Event(enable_timing=True)
            try:
                setattr(event, _TIMED, True)
            except AttributeError:
                self._known.add(event)
            return event
        except Exception as error:  # the fence around the training
            self._session.fault(self._hook, error)
            return None
