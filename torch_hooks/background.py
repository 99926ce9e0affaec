"""Starts the threads of whyidle that use torch, and keeps the objects that they use until they have ended.

A thread that ends drops its references. If one of them is the last reference to an event of torch, this thread destroys
the event, and torch lets other threads run meanwhile. If the interpreter begins to end at that moment, the thread
cannot return into Python, and the process aborts ("terminate called without an active exception"), after a training
that went well. So the last reference is kept here. It is dropped in a thread that may destroy such objects: the one
that closes the session, the training thread, or the main thread when the interpreter ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_started: list[tuple[threading.Thread, Callable[[], None]]] = []
_of_parent: list[tuple[threading.Thread, Callable[[], None]]] = []


def start(target: Callable[[], None], name: str) -> threading.Thread:
    """Starts a daemon thread. ``target``, and everything that it refers to, outlives the thread."""
    release_ended()
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    _started.append((thread, target))  # this frame has kept `target` alive until now
    return thread


def release_ended() -> None:
    """Drops the objects that only ended threads have used. Must not be called from one of these threads."""
    _started[:] = [(thread, target) for thread, target in _started if thread.is_alive()]


def after_fork_in_child() -> None:
    """Keeps for ever what the parent's threads use: destroying an event calls the device, and a child must not."""
    _of_parent.extend(_started)
    _started.clear()
