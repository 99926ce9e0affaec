"""Creates whyidle's own gloo groups. torch.distributed does not know them, so the names, order and number of the user's
groups do not change."""

from __future__ import annotations

import datetime
import os
import sys
from typing import Any

_THREADS = 1
PROTOCOL = 6
"""The version of what ranks send each other, and when. Ranks with another one do not meet, so their waits stay unsplit:
words that mean something else would be split wrongly. A test says when it must be raised."""


def server_of_store(distributed: Any) -> tuple[str, int] | None:
    """Host and port of the process group's store; None if it has no server to connect to."""
    store = distributed.distributed_c10d._get_default_store()
    while isinstance(store, distributed.PrefixStore):
        store = store.underlying_store
    return (store.host, store.port) if isinstance(store, distributed.TCPStore) else None


def connect(server: tuple[str, int], timeout_seconds: float) -> Any:
    """Opens a separate connection to the store. The connection of the training serves one request at a time, and
    whyidle's requests must not delay those of the training."""
    distributed = sys.modules["torch.distributed"]
    timeout = datetime.timedelta(seconds=timeout_seconds)
    client = distributed.TCPStore(*server, is_master=False, wait_for_workers=False, timeout=timeout)
    return distributed.PrefixStore(f"whyidle/{PROTOCOL}", client)


def build(store: Any, index: int, size: int) -> Any:
    """Creates a gloo group of ``size`` ranks; this one has number ``index``. Does not wait if connections are lazy."""
    distributed = sys.modules["torch.distributed"]
    gloo = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._threads = _THREADS
    options._timeout = datetime.timedelta(days=1)  # a rank may write a checkpoint for longer than the default
    device = _lazy_device(gloo)
    # torch 2.4 has no lazy connections, so each rank connects to all others.
    options._devices = [device] if device is not None else [_eager_device(gloo)]
    group = gloo(store, index, size, options)
    keep(group)  # its destructor waits for operations that a dead peer never joins
    return group


def _lazy_device(gloo: Any) -> Any:
    """A gloo device that connects two ranks when they first communicate; None if torch does not have such devices.

    Each group must have its own device: groups that shared one and connected at the same time were mixed up.
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
    """Prevents that ``thing`` is destroyed, even when the interpreter ends, until ``let_go`` is called."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def let_go(thing: Any) -> None:
    """Reverts one call of ``keep``."""
    import ctypes

    ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))
