"""Idle compute of the rank that has a device to itself."""

from __future__ import annotations

from ....ledger.directory import Key, key_of
from ....ledger.reader import Ledger
from ...ledgers import rank_labels
from ...metrics.gpu import COMPUTE_IDLE
from .idle_difference import ActivityPoints, ComputeIdle
from .target import Target
from .utilisation import Increase

_NS = 1_000_000_000


class IdleCompute:
    """Of one device: its activity at the last looks, and the counter of its rank."""

    __slots__ = ("_counter", "_points", "_process", "_rank")

    def __init__(self) -> None:
        self._points = ActivityPoints()
        self._counter = ComputeIdle()
        self._rank: Key | None = None
        self._process: tuple[str, int] | None = None

    def read(self, target: Target, increase: Increase | None, ledger: Ledger | None) -> None:
        """``increase`` is what was observed since the last look; None: nothing is known of it."""
        seen = increase or Increase()
        self._points.add(target.now, seen.busy, seen.observed)
        if ledger is None:
            self._rank = self._process = None
            return
        rank, process = key_of(ledger), (ledger.path, ledger.created_unix_ns)
        if rank != self._rank:
            self._counter = ComputeIdle()
        if process != self._process:
            self._counter.restart()
        self._rank, self._process = rank, process
        causes = [spent / _NS for spent in ledger.words["cause_ns"]]
        seconds = self._counter.add(ledger.until_ns / _NS, causes, self._points)
        target.reading.add(COMPUTE_IDLE, (*rank_labels(ledger), "sampled"), seconds)
