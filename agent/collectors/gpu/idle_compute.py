"""Idle compute of ranks that use, or used, a device alone."""

from __future__ import annotations

from ....ledger.directory import Key, key_of
from ....ledger.reader import Ledger
from ...counters import Accumulator
from ...ledgers import Snapshot, rank_labels
from ...metrics.gpu import COMPUTE_IDLE, RUN_COMPUTE_IDLE
from ...reading import Reading
from ...run_sums import Place, place_of
from .idle_difference import ActivityPoints, ComputeIdle

_NS = 1_000_000_000


class _Rank:
    """The counter of one rank, continued over its restarts and changes of device."""

    __slots__ = ("counter", "process", "read")

    def __init__(self) -> None:
        self.counter = ComputeIdle()
        self.process: tuple[str, int] | None = None
        self.read = False  # whether it was read in this round


class IdleCompute:
    """The counters of all ranks, kept as long as the device-seconds of the rank are exported.

    The sums of a run are kept as long as the run's other sums, so that they do not fall when a rank is forgotten.
    """

    __slots__ = ("_ranks", "_runs")

    def __init__(self) -> None:
        self._ranks: dict[Key, _Rank] = {}
        self._runs: Accumulator[Place] = Accumulator()

    def read(self, reading: Reading, points: ActivityPoints, ledger: Ledger) -> None:
        """Adds the sample of a live rank that uses a device alone. ``points`` has the activity of that device."""
        rank = self._ranks.setdefault(key_of(ledger), _Rank())
        process = (ledger.path, ledger.created_unix_ns)
        if process != rank.process:
            rank.counter.restart()
        rank.process, rank.read = process, True
        causes = [spent / _NS for spent in ledger.words["cause_ns"]]
        before = rank.counter.seconds
        seconds = rank.counter.add(ledger.until_ns / _NS, causes, points)
        self._runs.add(place_of(ledger), seconds - before)
        reading.add(COMPUTE_IDLE, (*rank_labels(ledger), "sampled"), seconds)

    def close_round(self, reading: Reading, snapshot: Snapshot) -> None:
        """Adds the samples of ended ranks and of runs, and forgets ranks that are gone.

        A live rank that was not read in this round has no sample.
        """
        newest = {key_of(rank.newest): rank.newest for rank in snapshot.ranks}
        for key in self._ranks.keys() - newest.keys():
            del self._ranks[key]
        for key, rank in self._ranks.items():
            ledger = newest[key]
            if not rank.read and not ledger.alive:
                before = rank.counter.seconds
                seconds = rank.counter.end()
                self._runs.add(place_of(ledger), seconds - before)
                reading.add(COMPUTE_IDLE, (*rank_labels(ledger), "sampled"), seconds)
            rank.read = False
        self._runs.keep(snapshot.runs.keys())
        for place, seconds in self._runs.items():
            reading.add(RUN_COMPUTE_IDLE, (*place, "sampled"), seconds)
