"""What the nodes of a run tell each other about their links, through the store of torch.distributed.

The first rank of each node counts itself for each network and each address that its node has. All ranks read these
counts now and then: how many nodes have a link in a network, and whether the other end of a connection is a node of the
run. `add` answers at once, so nobody ever waits for another rank; but the store may be gone, so this runs in a
background thread.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from typing import Any

from ...ledger.clock import own_clock
from .. import background
from ..exchange.side_group import connect

CONNECT_SECONDS = 60.0
_TRY_SECONDS = 3.0
_PAUSES_SECONDS = (0.0, 1.0, 3.0, 10.0, 30.0, 120.0, 600.0)
"""Between the rounds of questions; the last one again and again."""
_SETTLED = 4  # rounds
_STRANGERS_SECONDS = 30.0
"""The pause while an address is not known, if it is shorter."""
_MOST = 64
"""The most addresses that are asked for."""


class Told:
    """Only the watcher's thread may call it."""

    def __init__(self, server: tuple[str, int], first: bool):
        """``first``: this rank is the first of its node."""
        self._server = server
        self._first = first
        self._store: Any = None
        self._said: set[str] = set()
        self._counts: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._rounds = 0
        self._due = self._asked = 0.0
        self._failed = False
        self._stopped = False

    def due(self, strangers: bool = False) -> bool:
        """``strangers``: there is an address that is not known to be a node or not."""
        if self._failed or (self._thread is not None and self._thread.is_alive()):
            return False
        due = min(self._due, self._asked + _STRANGERS_SECONDS) if strangers else self._due
        return time.monotonic() >= due

    def ask(self, networks: list[str], own: list[str], peers: list[str]) -> None:
        """Tells the other nodes about this one, and asks about networks and addresses."""
        self._asked = time.monotonic()
        self._due = self._asked + _PAUSES_SECONDS[min(self._rounds, len(_PAUSES_SECONDS) - 1)]
        self._rounds += 1
        wanted = [*(f"net {network}" for network in networks), *(f"at {peer}" for peer in peers[:_MOST])]
        mine = [*(f"net {network}" for network in networks), *(f"at {address}" for address in own[:_MOST])]
        self._thread = background.start(lambda: self._round(mine, wanted), "whyidle-links")

    @property
    def settled(self) -> bool:
        """Whether every node has had time to tell of itself."""
        return self._rounds >= _SETTLED

    def nodes(self, network: str) -> int:
        """How many nodes have told of a link in a network; 0 if that is not known."""
        return self._counts.get(f"net {network}", 0) if network else 0

    def is_node(self, address: str) -> bool | None:
        """Whether a node of the run has this address; None if that is not known."""
        count = self._counts.get(f"at {address}")
        return None if count is None else count > 0

    def close(self) -> None:
        """A thread inside the store would crash the interpreter's exit."""
        self._stopped = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1.0)

    def _is_there(self) -> bool:
        """Whether the store can be asked. If it has gone with its launcher, torch would write a stack to stderr."""
        try:
            socket.create_connection(self._server, _TRY_SECONDS).close()
        except ConnectionRefusedError:
            self._failed = True
        except OSError:  # a busy node, for example: the next round asks again
            return False
        return not self._failed

    def _round(self, mine: list[str], wanted: list[str]) -> None:
        try:
            if self._store is None:
                self._store = connect(self._server, CONNECT_SECONDS)
            elif not self._is_there():
                return
            prefix, node = f"links {_attempt()}", _node()
            for thing in mine if self._first else ():
                if self._stopped:
                    return
                # Once, whatever becomes of this process and its world.
                if thing not in self._said and self._store.add(f"{prefix}/{thing}/{node}", 1) == 1:
                    self._store.add(f"{prefix}/{thing}", 1)
                self._said.add(thing)
            for thing in wanted:
                if self._stopped:
                    return
                self._counts[thing] = self._store.add(f"{prefix}/{thing}", 0)
        except Exception:  # the store is gone, or cannot count
            self._failed = True


def _attempt() -> str:
    """The store of a launcher outlives an attempt, and with it the nodes that have left."""
    return f"{os.environ.get('TORCHELASTIC_RUN_ID', '')} {os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"


def _node() -> str:
    """The machine and the network namespace."""
    try:
        namespace = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        namespace = 0
    return hashlib.blake2b(f"{own_clock().boot} {namespace}".encode(), digest_size=8).hexdigest()
