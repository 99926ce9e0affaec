"""The collector `clock`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> ClockCollector:
    return ClockCollector()


class ClockCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
