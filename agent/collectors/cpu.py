"""The collector `cpu`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> CpuCollector:
    return CpuCollector()


class CpuCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
