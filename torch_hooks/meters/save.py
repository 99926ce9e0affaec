"""Splits a save: how long the training thread was on a CPU or queued for one, and how long it was blocked."""

from __future__ import annotations

from ..books import Parts
from ..splits import split_save
from ..tasks import OwnTask, TaskClock


class SaveMeter:
    """Measures one save. A barrier or a garbage collection inside a save has its own cause. It divides the save into
    parts, and each part is measured separately."""

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
