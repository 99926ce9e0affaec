"""Which of a rank's data loaders the loop waits for most, by its number of workers.

A training often has several: one to train, and one or more to evaluate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ledger.layout import WORD_AT

_PID_AT, _TICKS_AT = WORD_AT["open_worker_pid"][0], WORD_AT["open_worker_start_ticks"][0]
UNKNOWN = -1
"""The number of workers of what is not a loader of torch."""


class Loader:
    """All loaders of this rank with the same number of workers."""

    __slots__ = ("_all", "ns", "workers")

    def __init__(self, workers: int, all_loaders: Loaders):
        self._all = all_loaders
        self.workers = workers
        self.ns = 0
        """How long the loop has waited for their batches, short waits left out."""

    def has_worker(self, pid: int) -> None:
        self._all.pids.add(pid)

    def add(self, at: int, number: int) -> None:
        """Adds to a word of the ledger."""
        if (words := self._all.words()) is not None:
            words[at] += number

    def owes(self, pid: int, start_ticks: int, workers: list[Any]) -> None:
        """From now on, the loop waits for a batch from this data worker; 0: it does not wait, or for another one.
        ``workers``: the processes of its loader."""
        self._all.open_workers = workers
        if (words := self._all.words()) is not None:
            words[_PID_AT], words[_TICKS_AT] = pid, start_ticks

    def waited(self, ns: int) -> None:
        self.ns += ns
        most = self._all.most
        if most is not self and (most is None or self.ns > most.ns):
            self._all.set_most(self)


class Loaders:
    """The loaders of this rank."""

    def __init__(self, tell: Callable[[int], None], words: Callable[[], memoryview[int] | None] = lambda: None):
        """``tell`` is called with the number of workers when another loader becomes the one waited for most.
        ``words`` returns the words of the ledger, if there is one."""
        self._tell = tell
        self.words = words
        self._loaders: dict[int, Loader] = {}
        self.pids: set[int] = set()
        """The data workers for which this loop has waited."""
        self.open_workers: list[Any] = []
        """The worker processes of the loader for which the loop waits."""
        self._elsewhere: Any = None
        self.awaits_maker = False
        """Whether the loop waits for a thread or process, without a loader, that has made a batch before."""
        self.most: Loader | None = None
        """The loader that the loop has waited for most."""

    def with_workers(self, workers: int, *, training: bool) -> Loader:
        """``training``: whether its batches are for training. Such a loader counts as the one waited for until there
        was a wait."""
        loader = self._loaders.get(workers)
        if loader is None:
            loader = self._loaders[workers] = Loader(workers, self)
        if training and (self.most is None or not self.most.ns):
            self.set_most(loader)
        return loader

    def unknown(self) -> Loader:
        """Stands for everything that makes batches without torch's loader, so that it has no number of workers."""
        return self.with_workers(UNKNOWN, training=False)

    def in_other_thread(self, iterator: Any) -> None:
        """A thread that fetches for the loop asks an iterator of torch's loader for a batch; None: it has got it."""
        self._elsewhere = iterator

    def owes_elsewhere(self) -> int | None:
        """The data worker that owes the batch for which another thread waits; None if none does."""
        iterator = self._elsewhere
        info = getattr(iterator, "_task_info", {}).get(getattr(iterator, "_rcvd_idx", None))
        return iterator._workers[info[0]].pid if info is not None and len(info) == 1 else None

    def set_most(self, loader: Loader) -> None:
        self.most = loader
        self._tell(loader.workers)
