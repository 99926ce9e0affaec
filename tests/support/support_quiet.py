"""Waits until the machine has idle cores, because the work of other programs would be measured as ours."""

from __future__ import annotations

import os
import time
from pathlib import Path

IDLE = 0.9
LOOK_SECONDS = 0.3
PATIENCE_SECONDS = 10.0


def _cpu_seconds() -> list[float]:
    """Seconds of all cores since they started: user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5))."""
    return [int(word) / os.sysconf("SC_CLK_TCK") for word in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]


def _idle_seconds() -> float:
    return sum(_cpu_seconds()[3:5])


class Stolen:
    """A block, and the share of all cores' CPU time that a hypervisor gave to others meanwhile."""

    share = 0.0

    def __init__(self) -> None:
        self._before = _cpu_seconds()

    def so_far(self) -> float:
        spent = [after - before for before, after in zip(self._before, _cpu_seconds(), strict=True)]
        return spent[7] / max(sum(spent), 1e-9)

    def __enter__(self) -> Stolen:
        self._before = _cpu_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.share = self.so_far()


_patience = [PATIENCE_SECONDS]


def wait_for_quiet() -> None:
    """Returns when the cores were idle for a moment, or when patience ends. After that, the next call has half the
    patience, because another program is busy permanently."""
    deadline = time.monotonic() + _patience[0]
    while time.monotonic() < deadline:
        begun, idle = time.monotonic(), _idle_seconds()
        time.sleep(LOOK_SECONDS)
        if _idle_seconds() - idle >= IDLE * (time.monotonic() - begun) * (os.cpu_count() or 1):
            return
    _patience[0] /= 2
