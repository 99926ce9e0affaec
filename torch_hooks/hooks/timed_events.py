"""Events of the training's own that get timing, so that they tell when a wait for them was over.

FSDP records an event on a stream of its own behind each collective, and makes the current stream wait for it. It asks
for no timing. Here the event gets some (`Event(enable_timing=True)`): it is one event as before, at the same place in
the same stream. Nothing more is recorded there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..patching import MARK, Patches

if TYPE_CHECKING:
    from ..session import Session


class TimedEvents:
    """The events of some streams of the training, with timing while an accelerator's clock runs."""

    def __init__(self, session: Session, hook: str, patches: Patches):
        self._session = session
        self._hook = hook
        self._patches = patches
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __contains__(self, event: Any) -> bool:
        return event in self._known

    def of(self, streams: Iterable[Any]) -> None:
        """From now on what these streams record has timing; call it again and again."""
        for stream in streams:
            # Without a __dict__ it is a type of C++, whose methods cannot be replaced: waits there get brackets.
            if hasattr(stream, "__dict__") and not hasattr(stream.record_event, MARK):
                self._patches.replace(
                    stream, "record_event", lambda original, stream=stream: self._wrap(stream, original)
                )

    def recorded_on(self, stream: Any) -> Any:
        """An event recorded on a stream, as `wait_stream` records one; None where it can have no timing."""
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
            self._known.add(event)
            return event
        except Exception as error:  # the fence around the training
            self._session.fault(self._hook, error)
            return None
