"""Starts whyidle's threads, and keeps alive what they use until they have ended.

A thread that ends drops its references. If one was the last to an event of torch, that thread would destroy the event,
and torch lets other threads run meanwhile. If the interpreter then begins to end, the thread can never return into
Python, and the process aborts ("terminate called without an active exception") after a training that went well.
So the last reference is here, and the thread that closes the session, or the interpreter's end, drops it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_started: list[tuple[threading.Thread, Callable[[], None]]] = []


def start(target: Callable[[], None], name: str) -> threading.Thread:
    """Starts a daemon thread. ``target``, and everything that it refers to, outlives the thread."""
    release_ended()
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    _started.append((thread, target))  # this frame has kept `target` alive until now
    return thread


def release_ended() -> None:
    """Drops what the threads used that have ended. Must not be called from one of them."""
    _started[:] = [(thread, target) for thread, target in list(_started) if thread.is_alive()]
