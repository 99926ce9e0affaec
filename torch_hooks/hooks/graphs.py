"""Records captures and replays of CUDA graphs (`torch.cuda.CUDAGraph`, which ROCm has, too).

A loop that replays a graph runs no backward pass and no optimizer that other hooks see. So a capture notes which ones
run in it, and each replay counts them. While a stream is captured nothing runs on the device, and an event on that
stream would become a part of the graph: the machine switches no phases until the capture ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ledger.causes import PHASE
from ..machine import NOT_ENTERED
from ..patching import NothingToHook, Patches
from ..steps import Captured

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_COMPILE = PHASE["compile"]


def install(session: Session) -> Callable[[], None]:
    patches = Patches()
    hook = _Graphs(session)

    def patch(module: ModuleType) -> None:
        graph = getattr(module, "CUDAGraph", None)
        if graph is None:
            raise NothingToHook("torch.cuda.graphs.CUDAGraph")
        patches.replace(graph, "capture_begin", hook.around_begin)
        patches.replace(graph, "capture_end", hook.around_end)
        patches.replace(graph, "replay", hook.around_replay)
        session.state("cuda_graphs", "active")

    patches.when_imported("torch.cuda.graphs", patch)
    return patches.undo


class _Graphs:
    """Knows what is inside the graphs of this process."""

    def __init__(self, session: Session):
        self._session = session
        self._known: weakref.WeakKeyDictionary[Any, Captured] = weakref.WeakKeyDictionary()
        self._old = NOT_ENTERED

    def around_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_begin(graph: Any, /, *args: Any, **kwargs: Any) -> Any:
            self._begins()
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                self._ends()
                raise

        return capture_begin

    def around_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_end(graph: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(graph, *args, **kwargs)
            finally:
                captured = self._ends()
                if captured is not None:
                    self._known[graph] = captured

        return capture_end

    def around_replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def replay(graph: Any, /, *args: Any, **kwargs: Any) -> Any:
            loop, machine, captured = self._session.loop, self._session.machine, self._known.get(graph)
            loop.replay_begins(captured)
            machine.replaying = True
            try:
                result = original(graph, *args, **kwargs)
            finally:
                machine.replaying = False
            loop.replayed(captured)
            return result

        return replay

    def _begins(self) -> None:
        session = self._session
        try:
            machine = session.machine
            if machine.mine():
                self._ends()  # of a capture that was given up
                self._old = machine.enter(_COMPILE)
                session.loop.capture = Captured()
                machine.pause()
        except Exception as error:  # the fence around the training
            session.fault("cuda_graphs", error)

    def _ends(self) -> Captured | None:
        """Returns what was captured; None if no capture of the training thread has begun."""
        session = self._session
        try:
            if session.loop.capture is None or not session.machine.mine():
                return None
            captured, session.loop.capture = session.loop.capture, None
            session.machine.resume()
            old, self._old = self._old, NOT_ENTERED
            session.machine.leave(old)
            return captured
        except Exception as error:  # the fence around the training
            session.fault("cuda_graphs", error)
            return None
