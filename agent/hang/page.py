"""The agent's page /hang: the dossiers of the runs of this node. It takes no stacks and asks for no dumps."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from ...ledger.directory import run_of
from ..ledgers import LedgerStore
from ..web.messages import Response, plain
from . import dossier, ras, text
from .later import Later

DEADLINE_SECONDS = 20.0
SHARED_SECONDS = 5.0
"""Requests within this time share a collection, so that many requests cost no more than one."""
MOST_RUNS = 4


class HangPage:
    """Collects in a separate thread, one collection at a time. Thread-safe."""

    def __init__(self, ledgers: LedgerStore, procfs: str, metrics: Callable[[], str], rootfs: str = "/"):
        self._ledgers = ledgers
        self._procfs = procfs
        self._metrics = metrics
        self._log = f"{rootfs.rstrip('/')}/dev/kmsg"
        self._lock = threading.Lock()
        self._current: Later[list[dict[str, Any]]] | None = None
        self._begun = float("-inf")

    def answer(self, *, as_json: bool) -> Response:
        absent: list[str] = []
        found = self._collection().result(DEADLINE_SECONDS, absent)
        if found is None:
            return plain(503, f"the dossier could not be collected: {'; '.join(absent)}")
        if as_json:
            return Response(200, "application/json", json.dumps(found, indent=2).encode())
        shown = "\n\n".join(map(text.with_json, found)) or "No run has a live rank on this node.\n"
        return Response(200, "text/plain; charset=utf-8", shown.encode())

    def _collection(self) -> Later[list[dict[str, Any]]]:
        with self._lock:
            now = time.monotonic()
            current = self._current
            if current is None or (current.done and now - self._begun > SHARED_SECONDS):
                self._begun = now
                current = self._current = Later("the dossier", self._collect)
            return current

    def _collect(self) -> list[dict[str, Any]]:
        newest = [rank.newest for rank in self._ledgers.look().ranks]
        runs = dict.fromkeys(run_of(ledger) for ledger in newest if ledger.alive)
        wanted = dossier.Wanted(
            procfs=self._procfs,
            log=self._log,
            ras_address=ras.default_address(),
            metrics=self._metrics,
            stacks=False,
            dumps=False,
        )
        return [dossier.collect(run, newest, wanted) for run in [*runs][:MOST_RUNS]]
