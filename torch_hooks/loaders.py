"""Which of a rank's data loaders the loop waits for most, by its number of workers.

A training often has several: one to train, and one or more to evaluate.
"""

from __future__ import annotations

from collections.abc import Callable


class Loader:
    """All loaders of this rank with the same number of workers."""

    __slots__ = ("_all", "ns", "workers")

    def __init__(self, workers: int, all_loaders: Loaders):
        self._all = all_loaders
        self.workers = workers
        self.ns = 0
        """How long the loop has waited for their batches, short waits left out."""

    def waited(self, ns: int) -> None:
        self.ns += ns
        most = self._all.most
        if most is not self and (most is None or self.ns > most.ns):
            self._all.set_most(self)


class Loaders:
    """The loaders of this rank."""

    def __init__(self, tell: Callable[[int], None]):
        """``tell`` is called with the number of workers when another loader becomes the one waited for most."""
        self._tell = tell
        self._loaders: dict[int, Loader] = {}
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

    def set_most(self, loader: Loader) -> None:
        self.most = loader
        self._tell(loader.workers)
