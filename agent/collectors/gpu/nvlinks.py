"""Reads what the NVLinks of a GPU can carry. Their speed changes only if a link goes down or comes up."""

from __future__ import annotations

from ...metrics import gpu as metrics
from .fields import CALL, ask
from .target import Target

LOOK_AGAIN_SECONDS = 60.0
_COUNT, _SPEED, _STATE = 91, 164, 165  # NVML_FI_DEV_NVLINK_LINK_COUNT, _GET_SPEED (MB/s), _GET_STATE
_MOST_LINKS = 128
_MOST_MEGABYTES = 10_000_000
_IN_USE = (1, 2)
"""NVML_NVLINK_STATE_ACTIVE and _SLEEP: a link sleeps until there is traffic."""


class NvLinks:
    """The NVLinks of one GPU."""

    __slots__ = ("_look_at", "_megabytes", "_target")

    def __init__(self, target: Target):
        self._target = target
        self._megabytes = 0.0
        self._look_at = 0.0

    def read(self) -> None:
        """Adds the sum of the speeds. Raises Lost and Uninitialised."""
        target = self._target
        if target.now >= self._look_at:
            self._look_at = target.now + LOOK_AGAIN_SECONDS
            self._megabytes = 0.0  # stays if the GPU is lost meanwhile
            self._megabytes = self._speeds()
        if self._megabytes:
            target.reading.add(metrics.NVLINK_RATE, target.labels, metrics.NVLINK_RATE.base(self._megabytes))

    def _speeds(self) -> float:
        """MB/s of all links in use, or 0 if there are none."""
        target = self._target
        (count,) = ask(target, [(_COUNT, 0)])
        if count is None:
            return 0.0
        if not 0 <= count <= _MOST_LINKS:
            target.garbage(f"{CALL}/{_COUNT}")
            return 0.0
        links = range(int(count))
        found = ask(target, [(field, link) for field in (_STATE, _SPEED) for link in links])
        states, speeds = found[: len(links)], found[len(links) :]
        used = [speed for state, speed in zip(states, speeds, strict=True) if state in _IN_USE and speed]
        if any(not 0 <= speed <= _MOST_MEGABYTES for speed in used):
            target.garbage(f"{CALL}/{_SPEED}")
            return 0.0
        return sum(used)
