"""Splits a save: how long the training thread, or a thread that the save has started and waited for, was on a CPU or
queued for one, and how long the loop was blocked otherwise."""

from __future__ import annotations

from ..books import Parts
from ..splits import split_save
from ..tasks import OwnTask, TaskClock
from ..threads import OwnThreads


class SaveMeter:
    """Measures one save. A barrier or a garbage collection inside a save has its own cause. It divides the save into
    parts, and each part is measured separately."""

    __slots__ = ("_own", "_task", "_threads")

    def __init__(self, task: TaskClock | None, threads: OwnThreads):
        self._task, self._threads = task, threads
        self._own: OwnTask | None = None

    def begin(self) -> None:
        """A part begins."""
        self._own = OwnTask(self._task)
        self._threads.part_begins()

    def split(self, ns: int) -> Parts | None:
        """A part of ``ns`` ends."""
        own, self._own = self._own, None
        return split_save(ns, *own.spent(), self._threads.part_ends()) if own is not None else None
