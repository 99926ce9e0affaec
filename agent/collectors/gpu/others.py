"""Processes that compute on the GPU of a rank and belong to no rank."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Set
from dataclasses import dataclass, field

from ...metrics.gpu import OTHER_BUSY
from .nvml import INSUFFICIENT_SIZE, NOT_FOUND, ProcessUtilization
from .target import Target

_SAMPLES_MOST = 4096
_NAMED = 8
"""How many processes a GPU has series for: those that kept it busy for longest."""
LONGEST_SECONDS = 30.0
"""The longest interval between two looks that counts: the driver keeps samples of some seconds only."""
_CALL = "nvmlDeviceGetProcessUtilization"


@dataclass(slots=True)
class Others:
    """What is known about the processes on one GPU."""

    last_seen_us: int = 0
    read_at: float | None = None
    same_pids: bool = False
    """Whether the driver has named a process of a rank, so that it counts pids as this agent does."""
    seconds: dict[int, float] = field(default_factory=dict)

    def read(self, target: Target, of_ranks: Set[int], procfs: str) -> None:
        """Adds the samples. ``of_ranks``: the pids of all ranks and their descendants."""
        shares = self._shares(target)
        before, self.read_at = self.read_at, target.now
        if shares is None:
            return
        self.same_pids = self.same_pids or not of_ranks.isdisjoint(shares)
        elapsed = 0.0 if before is None else target.now - before
        if self.same_pids and 0 < elapsed <= LONGEST_SECONDS:
            for pid, share in shares.items():
                if pid not in of_ranks and share:
                    self.seconds[pid] = self.seconds.get(pid, 0.0) + share * elapsed
        found = {pid: uid for pid in self.seconds if (uid := _uid(procfs, pid)) is not None}
        busiest = sorted(found, key=lambda pid: -self.seconds[pid])[:_NAMED]
        self.seconds = {pid: self.seconds[pid] for pid in busiest}
        for pid in busiest:
            target.reading.add(OTHER_BUSY, (*target.labels, str(pid), str(found[pid])), self.seconds[pid])

    def _shares(self, target: Target) -> dict[int, float] | None:
        """The mean share of its multiprocessors that each process used since the last look; None if not known."""
        function = target.function(_CALL)
        if function is None:
            return None
        count = ctypes.c_uint(0)
        since = ctypes.c_ulonglong(self.last_seen_us)
        code = function(target.handle, None, ctypes.byref(count), since)
        if code == NOT_FOUND or (not code and not count.value):
            return {}
        if code != INSUFFICIENT_SIZE:
            target.answered(code, _CALL)
            return None
        if count.value > _SAMPLES_MOST:
            target.garbage(_CALL)
            return None
        samples = (ProcessUtilization * count.value)()
        code = function(target.handle, samples, ctypes.byref(count), since)
        if code in (NOT_FOUND, INSUFFICIENT_SIZE):  # the processes have changed since
            return {}
        if not target.answered(code, _CALL):
            return None
        of_pid: dict[int, list[int]] = {}
        for sample in samples[: count.value]:
            # Drivers fill some entries with nothing, or with old samples.
            if sample.pid and sample.time > self.last_seen_us and sample.multiprocessors <= 100:
                of_pid.setdefault(sample.pid, []).append(sample.multiprocessors)
        self.last_seen_us = max((sample.time for sample in samples[: count.value]), default=self.last_seen_us)
        return {pid: sum(values) / len(values) / 100 for pid, values in of_pid.items()}


def _uid(procfs: str, pid: int) -> int | None:
    try:
        return os.stat(f"{procfs}/{pid}").st_uid
    except OSError:  # it has ended
        return None
