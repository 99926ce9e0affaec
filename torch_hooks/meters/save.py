"""Splits a save: what the training thread spent on a CPU or queueing for one, and what it was blocked."""

from __future__ import annotations

from ..books import Parts
from ..splits import split_save
from ..tasks import OwnTask, TaskClock


class SaveMeter:
    """Of one save. A barrier or a garbage collection in the middle of it has a cause of its own: the save is then
    split in several parts, each by what the thread spent in it."""

    __slots__ = ("_own", "_task")

    def __init__(self, task: TaskClock | None):
        self._task = task
        self._own: OwnTask | None = None

    def begin(self) -> None:
        """A part begins."""
        self._own = OwnTask(self._task)

    def split(self, ns: int) -> Parts | None:
        """A part of ``ns`` ends."""
        own, self._own = self._own, None
        return split_save(*own.spent()) if own is not None else None
