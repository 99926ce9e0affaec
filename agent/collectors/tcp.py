"""The collector `tcp`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> TcpCollector:
    return TcpCollector()


class TcpCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
