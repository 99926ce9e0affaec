"""The collector `gpu`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> GpuCollector:
    return GpuCollector()


class GpuCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
