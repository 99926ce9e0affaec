"""Waits until the machine has idle cores: what others compute there would be measured as ours."""

from __future__ import annotations

import os
import time
from pathlib import Path

IDLE = 0.9
LOOK_SECONDS = 0.3
PATIENCE_SECONDS = 60.0


def _idle_seconds() -> float:
    """Of all cores, since they started."""
    idle, iowait = Path("/proc/stat").read_text().split(maxsplit=6)[4:6]
    return (int(idle) + int(iowait)) / os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> tuple[float, float]:
    """-> (of all cores, what a hypervisor gave to others while we had work), since the machine started."""
    times = [int(word) / os.sysconf("SC_CLK_TCK") for word in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    return sum(times), times[7]


def wait_for_quiet() -> None:
    """Returns when the cores were idle for a moment, or patience ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        begun, idle = time.monotonic(), _idle_seconds()
        time.sleep(LOOK_SECONDS)
        if _idle_seconds() - idle >= IDLE * (time.monotonic() - begun) * (os.cpu_count() or 1):
            return
