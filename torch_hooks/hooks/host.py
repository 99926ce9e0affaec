"""Records work of the interpreter that is not in the loop's own code: garbage collection, compilation, and when other
threads start and end."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ...ledger.causes import PHASE
from ...ledger.layout import WORD_AT
from .. import frames
from ..failure import described
from ..late_import import forget, when_imported
from ..machine import NOT_ENTERED
from ..patching import NothingToHook, Patches
from ..threads import OURS
from ..user_code import is_library

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_GC, _COMPILE = PHASE["gc"], PHASE["compile"]
_FROZEN_AT, _ASKED_AT, _ASKED_NS_AT = (WORD_AT[name][0] for name in ("gc_frozen", "gc_asked", "gc_asked_ns"))


def install_gc(session: Session) -> Callable[[], None]:
    """Records collections of the older generations. Those of the youngest are frequent but take only about 50 µs, too
    little for two phase switches."""
    open_pause = [NOT_ENTERED]
    asked_ns = [0]
    """When a collection began that the program has asked for; 0: it has not."""
    frozen = [gc.get_freeze_count() > 0]  # counting them takes long if there are many

    def make(now: bool) -> Callable[[Callable[[], None]], Callable[[], None]]:
        def makes(original: Callable[[], None]) -> Callable[[], None]:
            def freezes() -> None:
                frozen[0] = now
                original()

            return freezes

        return makes

    def pause(phase: str, info: dict[str, int]) -> None:
        if not info["generation"]:
            return
        if phase == "start":
            generation = info["generation"]  # the interpreter collects one if its count exceeds its threshold
            asked = gc.get_count()[generation] <= gc.get_threshold()[generation]
            asked_ns[0] = time.monotonic_ns() if asked else 0
            open_pause[0] = session.machine.enter(_GC)
        else:
            old, open_pause[0] = open_pause[0], NOT_ENTERED
            session.machine.leave(old)
            if (writer := session.writer) is not None:
                writer.words[_FROZEN_AT] = frozen[0]
                if asked_ns[0] and old != NOT_ENTERED:
                    writer.words[_ASKED_AT] += 1
                    writer.words[_ASKED_NS_AT] += time.monotonic_ns() - asked_ns[0]

    patches = Patches()
    patches.replace(gc, "freeze", make(True))
    patches.replace(gc, "unfreeze", make(False))
    gc.callbacks.append(pause)
    session.state("gc", "active")

    def undo() -> None:
        if pause in gc.callbacks:
            gc.callbacks.remove(pause)
        patches.undo()

    return undo


def install_threads(session: Session) -> Callable[[], None]:
    """Notes when a thread of ``threading`` starts, and how much CPU time it has had when it ends. After that, the
    kernel only has the sum of all threads. Those that the training thread starts in a save are told from others.
    `_bootstrap_inner` is what such a thread runs, in all versions of Python 3.
    It calls `_invoke_excepthook` of the thread if an exception ends it (Lib/threading.py, since Python 3.8).
    """
    patches = Patches()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def _bootstrap_inner(thread: threading.Thread) -> None:
            own, helped = False, None
            try:
                helped = session.threads.helps(thread)
                session.threads.born.append((threading.get_native_id(), thread.name))
                own = not thread.name.startswith(OURS) and runs_own_code(thread)
                if own:
                    _note_failure(session, thread)
            except Exception as error:  # the fence around the training
                session.fault("threads", error)
            try:
                original(thread)
            finally:
                try:
                    cpu_ns = time.thread_time_ns()
                    if helped is not None:
                        helped.append(cpu_ns)
                    session.threads.end(thread, threading.get_native_id(), cpu_ns, own)
                except Exception:  # the interpreter ends, and nobody counts any more
                    pass

        return _bootstrap_inner

    def make_start(original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        def start(self: threading.Thread) -> None:
            threads = session.threads
            if threads.helped is None or not session.machine.mine():
                return original(self)
            try:
                threads.starting = self
                return original(self)  # waits until the thread has begun
            finally:
                threads.starting = None

        return start

    patches.replace(threading.Thread, "_bootstrap_inner", make)
    patches.replace(threading.Thread, "start", make_start)
    session.state("threads", "active")
    return patches.undo


def runs_own_code(thread: threading.Thread) -> bool:
    """Whether a thread that has not begun yet is to run a function of the training's own code."""
    target: Any = getattr(thread, "_target", None)
    if target is None:
        target = type(thread).run
    while type(target) is functools.partial:
        target = target.func
    code = target.__code__ if isinstance(target, (FunctionType, MethodType)) else None
    return code is not None and not is_library(code.co_filename)


def _note_failure(session: Session, thread: threading.Thread) -> None:
    original = getattr(thread, "_invoke_excepthook", None)
    if not callable(original):
        return

    def invoke(failed: threading.Thread) -> None:
        try:
            if not isinstance(error := sys.exc_info()[1], SystemExit):  # it may end a thread that has done its work
                session.threads.fails(failed, described(error, frames.enabled()))
        except Exception:  # the interpreter ends
            pass
        original(failed)

    thread._invoke_excepthook = invoke  # type: ignore[attr-defined]


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
