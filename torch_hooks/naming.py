"""The name of the run after its ledger was created: what a process group, and the trainings beside this one, add to it.

Where no variable names the run, each rank gives it a name by itself: two ranks that meet by `init_method` would be two
runs. So the ranks of a world take the name that its rank 0 writes to the store of torch.distributed. A thread asks for
it through a separate connection. The training thread takes the answer at a boundary, usually that of the first step.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..ledger.layout import WORD_AT
from ..ledger.text import as_stored
from ..ledger.writer import LedgerWriter
from . import background
from .exchange.side_group import connect
from .identity import Identity
from .restart import Restart, name_beside, own_ledgers, restart_of

if TYPE_CHECKING:
    from .machine import PhaseMachine
    from .null_machine import NullMachine

PATIENCE_SECONDS = 60.0
"""How long a rank asks for the name."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 1.0
_CREATED_AT, _STEPS_AT = WORD_AT["created_unix_ns"][0], WORD_AT["steps"][0]


class Naming:
    """The name and the rank in the ledger of this process. ``resume`` gets what earlier attempts had done."""

    def __init__(self, writer: LedgerWriter, who: Identity, resume: Callable[[Restart], object]):
        self._writer = writer
        self._who = who
        self._resume = resume
        self._alone = who.world_size == 1
        self._begun = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._found: tuple[Identity, Restart] | None = None

    def joins(self, server: tuple[str, int] | None, rank: int, world_size: int) -> None:
        """This process is in a world: its rank there wins. ``server``: that of the world's store."""
        who, writer = self._who, self._writer
        self._alone = world_size == 1
        writer.set("rank", rank)
        writer.set("world_size", world_size)
        if not who.knows_local_rank:
            writer.set("local_rank", rank)
        self._stop.set()
        asks = not who.named and not self._alone and server is not None
        if not asks and rank == who.rank:
            return
        self._stop = threading.Event()
        ask = server if asks else None
        ours = replace(who, rank=rank, world_size=world_size)
        self._thread = background.start(lambda stop=self._stop: self._find(ask, ours, stop), "whyidle-name")

    def settle(self, machine: PhaseMachine | NullMachine) -> None:
        """Takes what was found. Called at a boundary of the training thread; never waits."""
        if self._found is not None and machine.admits():
            (who, before), self._found = self._found, None
            machine.update(self._rename, who, before)

    def begins(self, machine: PhaseMachine | NullMachine) -> None:
        """The first step begins. Another training with one rank may have this one's name already."""
        if self._alone and not self._begun and machine.admits():
            self._begun = True
            writer, who = self._writer, self._who
            others = own_ledgers(os.path.dirname(writer.path), writer.path)
            name = name_beside(others, who, writer.words[_CREATED_AT])
            if name != who.run:
                machine.update(writer.set_string, "run", name)

    def stop(self) -> None:
        """Ends the search for the name, without waiting for it."""
        self._stop.set()

    def close(self) -> None:
        self.stop()
        if (thread := self._thread) is not None:
            thread.join(timeout=2.0)

    def _rename(self, who: Identity, before: Restart) -> None:
        writer = self._writer
        self._who = who
        writer.set_string("run", who.run)
        writer.set("attempt", before.attempt)
        if not writer.words[_STEPS_AT]:
            writer.set("recompute_until", 0 if before.finished else before.steps)
            self._resume(before)

    # -- in a thread

    def _find(self, server: tuple[str, int] | None, who: Identity, stop: threading.Event) -> None:
        try:
            name = who.run if server is None else _agreed(connect(server, PATIENCE_SECONDS), who, stop)
            if name is None or (name, who.rank) == (self._who.run, self._who.rank):
                return
            found = replace(who, run=as_stored("run", name))
            path = self._writer.path
            before = restart_of(own_ledgers(os.path.dirname(path), path), found)
            if not stop.is_set():
                self._found = found, before
        except Exception:  # the store is gone: the training ends, or has another world
            return


def _agreed(store: Any, who: Identity, stop: threading.Event) -> str | None:
    """The name that rank 0 of this world has written; None if it does not write one in time."""
    # A launcher may keep its store for all attempts. Two worlds in one store that have the same size are one run.
    key = f"run/{who.attempt}/{who.world_size}"
    if who.rank == 0:
        return store.compare_set(key, "", who.run).decode()
    until, pause = time.monotonic() + PATIENCE_SECONDS, _SHORTEST_PAUSE
    while not store.check([key]):  # a thread that waits inside the store would crash the interpreter's exit
        if time.monotonic() > until or stop.wait(pause):
            return None
        pause = min(_LONGEST_PAUSE, 1.5 * pause)
    return store.get(key).decode()
