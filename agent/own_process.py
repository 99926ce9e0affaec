"""CPU time, memory and open files of the agent's process, from /proc/self, under the usual names (`process_*`).

prometheus_client has the same metrics, but needs 12 MB of memory: it imports the standard library's HTTP and mail
modules.
"""

from __future__ import annotations

import os
import resource
import time

from ..ledger.clock import signed_ticks
from .files import KeptFiles, Unreadable, number
from .metrics import own
from .reading import Reading

_PAGE_BYTES = resource.getpagesize()
_METRIC = {metric.name.removeprefix("process_"): metric for metric in own.PROCESS}


class OwnProcess:
    """Reads the metrics of this process. Values that cannot be read are left out. Not thread-safe."""

    def __init__(self) -> None:
        self._files = KeptFiles()
        self._start = _start_seconds()

    def read(self, reading: Reading) -> None:
        found: dict[str, float] = {"cpu_seconds_total": time.process_time(), **self._memory()}
        if (open_files := _open_files()) is not None:
            found["open_fds"] = open_files
        if (most := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) != resource.RLIM_INFINITY:
            found["max_fds"] = most
        if self._start is not None:
            found["start_time_seconds"] = self._start
        for name, value in found.items():
            reading.add(_METRIC[name], (), value)

    def _memory(self) -> dict[str, float]:
        try:
            size, resident = self._files.attribute("/proc/self/statm").split()[:2]
            return {
                "virtual_memory_bytes": number(size) * _PAGE_BYTES,
                "resident_memory_bytes": number(resident) * _PAGE_BYTES,
            }
        except (Unreadable, ValueError):
            return {}


def _open_files() -> int | None:
    try:
        # In Linux 6.2 and later, the size of the directory is the number of open files. Listing 500 entries is slow.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


def _start_seconds() -> float | None:
    """When this process started, in Unix seconds, or None."""
    try:
        with open("/proc/self/stat", "rb") as file:
            since_boot = signed_ticks(int(file.read().rpartition(b")")[2].split()[19])) / os.sysconf("SC_CLK_TCK")
        with open("/proc/stat", "rb") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return boot + since_boot
