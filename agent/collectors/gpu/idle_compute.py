"""Idle compute of ranks that use, or used, a device alone: by the activity of the device (`idle_difference.py`), and by
the ranks' own looks at their streams."""

from __future__ import annotations

from ....ledger.directory import Key, key_of
from ....ledger.reader import Ledger
from ...counters import Accumulator
from ...ledgers import Snapshot, rank_labels
from ...metrics.gpu import COMPUTE_IDLE, COMPUTE_OBSERVED, RUN_COMPUTE_IDLE
from ...reading import Reading
from ...run_sums import Place, place_of
from .idle_difference import COMPUTE, ActivityPoints, ComputeIdle

_NS = 1_000_000_000
LEAST_LOOKS = 10
"""A share is taken of at least this many looks. They take two seconds at first, and ten seconds later."""


class _Rank:
    """The counter of one rank, continued over its restarts and changes of device."""

    __slots__ = ("_before", "_looked", "_of_device", "process", "read", "seconds")

    def __init__(self) -> None:
        self._of_device = ComputeIdle()
        self._looked: float | None = None
        self._before: tuple[int, int, int, int, int] | None = None  # see `_look`
        self.seconds = 0.0
        self.process: tuple[str, int] | None = None
        self.read = False  # whether it was read in this round

    def restart(self) -> None:
        """The rank has a new process."""
        self._of_device.restart()
        self._before = None

    def add(self, ledger: Ledger, points: ActivityPoints, *, gpm: bool = False) -> float:
        """Adds what a live rank's ledger has. Returns the seconds that are new. ``gpm``: see ComputeIdle."""
        before = self.seconds
        causes = [spent / _NS for spent in ledger.words["cause_ns"]]
        if ledger.looks:
            self._looked = (self._looked or 0.0) + self._look(ledger)
        self.seconds = self._of_device.add(ledger.until_ns / _NS, causes, points, self._looked, gpm=gpm)
        return self.seconds - before

    def end(self) -> float:
        """Adds what is left of a rank that has ended. Returns the seconds that are new."""
        before, self.seconds = self.seconds, self._of_device.end()
        return self.seconds - before

    @property
    def covered(self) -> float:
        return self._of_device.covered

    def _look(self, ledger: Ledger) -> float:
        """The share of empty looks since the last call, of the time since then, but at most the compute in it."""
        compute = sum(ledger.words["cause_ns"][index] for index in COMPUTE)
        now = ledger.looks, ledger.words["looked_ns"][0], ledger.words["empty_ns"][0], ledger.until_ns, compute
        if self._before is None:
            self._before = now
            return 0.0
        looks, looked, empty, ns, compute = (new - old for new, old in zip(now, self._before, strict=True))
        if looks < LEAST_LOOKS or looked <= 0:
            return 0.0
        self._before = now
        return max(0, min(compute, ns * empty // looked)) / _NS


class IdleCompute:
    """The counters of all ranks, kept as long as the device-seconds of the rank are exported.

    The sums of a run are kept as long as the run's other sums, so that they do not fall when a rank is forgotten.
    """

    __slots__ = ("_ranks", "_runs")

    def __init__(self) -> None:
        self._ranks: dict[Key, _Rank] = {}
        self._runs: Accumulator[Place] = Accumulator()

    def read(self, reading: Reading, points: ActivityPoints, ledger: Ledger, *, gpm: bool) -> None:
        """Adds the samples of a live rank that uses a device alone. ``points`` has the activity of that device."""
        rank = self._ranks.setdefault(key_of(ledger), _Rank())
        process = (ledger.path, ledger.created_unix_ns)
        if process != rank.process:
            rank.restart()
        rank.process, rank.read = process, True
        self._runs.add(place_of(ledger), rank.add(ledger, points, gpm=gpm))
        _export(reading, ledger, rank)

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
                self._runs.add(place_of(ledger), rank.end())
                _export(reading, ledger, rank)
            rank.read = False
        self._runs.keep(snapshot.runs.keys())
        for place, seconds in self._runs.items():
            reading.add(RUN_COMPUTE_IDLE, (*place, "sampled"), seconds)


def _export(reading: Reading, ledger: Ledger, rank: _Rank) -> None:
    reading.add(COMPUTE_IDLE, (*rank_labels(ledger), "sampled"), rank.seconds)
    reading.add(COMPUTE_OBSERVED, (*rank_labels(ledger), "gpm"), rank.covered)
