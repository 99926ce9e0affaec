"""Records work of the interpreter that is not in the loop's own code: garbage collection and compilation."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ledger.causes import PHASE
from ..late_import import forget, when_imported
from ..machine import NOT_ENTERED
from ..patching import NothingToHook

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_GC, _COMPILE = PHASE["gc"], PHASE["compile"]


def install_gc(session: Session) -> Callable[[], None]:
    """Records collections of the older generations. Those of the youngest are frequent but take only about 50 µs, too
    little for two phase switches."""
    open_pause = [NOT_ENTERED]

    def pause(phase: str, info: dict[str, int]) -> None:
        if not info["generation"]:
            return
        if phase == "start":
            open_pause[0] = session.machine.enter(_GC)
        else:
            old, open_pause[0] = open_pause[0], NOT_ENTERED
            session.machine.leave(old)

    gc.callbacks.append(pause)
    session.state("gc", "active")

    def undo() -> None:
        if pause in gc.callbacks:
            gc.callbacks.remove(pause)

    return undo


def install_compile(session: Session) -> Callable[[], None]:
    """Registers callbacks that Dynamo calls around a compilation. They are private (torch/_dynamo/callback.py), so it
    checks first that they exist."""
    taken: list[tuple[list[Any], Any]] = []
    open_compile = [NOT_ENTERED]

    def begins(*_: Any) -> None:
        if open_compile[0] == NOT_ENTERED:
            open_compile[0] = session.machine.enter(_COMPILE)

    def ends(*_: Any) -> None:
        old, open_compile[0] = open_compile[0], NOT_ENTERED
        session.machine.leave(old)

    def register(module: ModuleType) -> None:
        handler = getattr(module, "callback_handler", None)
        starts, stops = getattr(handler, "start_callbacks", None), getattr(handler, "end_callbacks", None)
        if not isinstance(starts, list) or not isinstance(stops, list):
            raise NothingToHook("torch._dynamo.callback.callback_handler")
        starts.append(begins)
        stops.append(ends)
        taken.extend(((starts, begins), (stops, ends)))
        session.state("compile", "active")

    when_imported("torch._dynamo.callback", register)

    def undo() -> None:
        forget(register)
        for callbacks, ours in taken:
            if ours in callbacks:
                callbacks.remove(ours)

    return undo
