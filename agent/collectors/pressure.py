"""The collector `pressure`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> PressureCollector:
    return PressureCollector()


class PressureCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
