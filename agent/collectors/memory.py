"""The collector `memory`: free memory of the node, and the work that the kernel does because memory is short."""

from __future__ import annotations

from ..collector import Options
from ..files import KeptFiles, Unreadable
from ..metrics.memory import MEMINFO, STALLS, VMSTAT
from ..parsers.meminfo import meminfo, vmstat
from ..reading import Labels, Reading

_NONE: Labels = ()
_ZONES = tuple(
    # One counter per zone since Linux 4.10, a single one before.
    f"allocstall{zone}".encode()
    for zone in ("_dma", "_dma32", "_normal", "_high", "_movable", "_device", "")
)
_VMSTAT = (*VMSTAT, *_ZONES)


def create(options: Options) -> MemoryCollector:
    return MemoryCollector(options.roots.procfs)


class MemoryCollector:
    def __init__(self, procfs: str):
        self._meminfo = f"{procfs}/meminfo"
        self._vmstat = f"{procfs}/vmstat"
        self._files = KeptFiles()

    def collect(self, reading: Reading) -> None:
        try:
            found, bad = meminfo(self._files.text(self._meminfo), MEMINFO)
        except Unreadable as error:
            reading.error("", "meminfo", error.reason)
        else:
            self._errors("meminfo", bad, reading)
            for name, kibibytes in found.items():
                metric = MEMINFO[name]
                reading.add(metric, _NONE, kibibytes * metric.times)
        try:
            found, bad = vmstat(self._files.text(self._vmstat), _VMSTAT)
        except Unreadable as error:
            reading.error("", "vmstat", error.reason)
        else:
            self._errors("vmstat", bad, reading)
            self._events(found, bad, reading)

    def _events(self, found: dict[bytes, int], bad: list[bytes], reading: Reading) -> None:
        for name, metric in VMSTAT.items():
            if name in found:
                reading.add(metric, _NONE, found[name] * metric.times)
        zones = [found[zone] for zone in _ZONES if zone in found]
        if zones and not any(name in _ZONES for name in bad):
            reading.add(STALLS, _NONE, sum(zones))

    def _errors(self, file: str, names: list[bytes], reading: Reading) -> None:
        for name in names:
            reading.error("", f"{file}, {name.decode()}", "garbage")
