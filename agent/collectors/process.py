"""The collector `process`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> ProcessCollector:
    return ProcessCollector()


class ProcessCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
