"""Brings the ranks together that share the units of a step, in a separate gloo group. Waits in the background only.

The exchange of waits has another group: there, the ranks start operations in an order that calls of `share` do not
follow.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from .. import background
from ..exchange.exchange import CONNECT_SECONDS
from ..exchange.formation import Formation
from ..exchange.operations import Operations
from ..exchange.side_group import build, connect
from ..groups import key_of

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0


class Meeting:
    """The formation of the group, from the first call of `share` on."""

    def __init__(self, server: tuple[str, int], ranks: tuple[int, ...], rank: int, finished: Callable[[Any], None]):
        """``server``: host and port of the store. ``ranks``: in ascending order. ``finished``: see `Operations`."""
        self._server, self._ranks, self._rank = server, ranks, rank
        self._finished = finished
        self._stop = threading.Event()
        self.operations: Operations | None = None
        """Set when all ranks are there."""
        self.failure = ""
        """Why that never happens."""
        self._thread = background.start(self._form, "whyidle-share")

    def _form(self) -> None:
        try:
            prefixed = sys.modules["torch.distributed"].PrefixStore
            store = prefixed("share", connect(self._server, CONNECT_SECONDS))
            key = key_of(self._ranks, False)
            formation = Formation(store, key, self._ranks, self._rank)
            pause = _SHORTEST_PAUSE
            while formation.poll(0) is None:
                # Polls instead of waiting in the store: a thread inside it would crash the interpreter's exit.
                if self._stop.wait(pause):
                    return
                pause = min(_LONGEST_PAUSE, pause * 1.5)
            place = prefixed(f"{key:x}/{formation.token}", store)
            side = build(place, self._ranks.index(self._rank), len(self._ranks))
            self.operations = Operations(side, self._finished)
        except Exception as error:  # the fence around the training
            self.failure = str(error) or type(error).__name__

    def close(self, *, wait: bool) -> None:
        """``wait``: until its thread has ended, at most 2 s: it must not be inside the store when the process ends."""
        self._stop.set()
        if wait and self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
