"""A gloo group of our own beside torch.distributed's bookkeeping: names, order and number of the user's groups stay as
they are."""

from __future__ import annotations

import datetime
import os
import sys
from typing import Any

_THREADS = 1


def server_of_store(distributed: Any) -> tuple[str, int] | None:
    """Host and port of the process group's store; None if it has no server to connect to."""
    store = distributed.distributed_c10d._get_default_store()
    while isinstance(store, distributed.PrefixStore):
        store = store.underlying_store
    return (store.host, store.port) if isinstance(store, distributed.TCPStore) else None


def connect(server: tuple[str, int], timeout_seconds: float) -> Any:
    """A connection of our own to the store: the training's serves one request at a time, and none of ours may stand
    before one of its."""
    distributed = sys.modules["torch.distributed"]
    timeout = datetime.timedelta(seconds=timeout_seconds)
    client = distributed.TCPStore(*server, is_master=False, wait_for_workers=False, timeout=timeout)
    return distributed.PrefixStore("whyidle", client)


def build(store: Any, index: int, size: int) -> Any:
    """A gloo group of ``size`` ranks, of which this is number ``index``. With lazy connections it waits for nobody."""
    distributed = sys.modules["torch.distributed"]
    gloo = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._threads = _THREADS
    options._timeout = datetime.timedelta(days=1)  # a rank may write a checkpoint for longer than the default
    device = _lazy_device(gloo)
    # torch 2.4 knows no lazy connections: each rank then connects to all others.
    options._devices = [device] if device is not None else [_eager_device(gloo)]
    group = gloo(store, index, size, options)
    keep(group)  # its destructor waits for operations that a dead peer never joins
    return group


def _lazy_device(gloo: Any) -> Any:
    """A device that connects two ranks when they first talk; None where torch knows none.

    Each group has its own: groups of one device that connect at the same time were seen to be connected crosswise.
    """
    try:
        interface = _interface()
        if interface:
            return gloo.create_device(interface=interface, lazy_init=True)
        return gloo.create_default_device(lazy_init=True)
    except TypeError:
        return None


def _eager_device(gloo: Any) -> Any:
    interface = _interface()
    return gloo.create_device(interface=interface) if interface else gloo.create_default_device()


def _interface() -> str:
    return os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]


def keep(thing: Any) -> None:
    """Nothing destroys it, not even the interpreter's end, unless ``let_go`` is called."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def let_go(thing: Any) -> None:
    """Undoes one ``keep``."""
    import ctypes

    ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))
