"""The collector `disk`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> DiskCollector:
    return DiskCollector()


class DiskCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
