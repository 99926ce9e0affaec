"""The collector `rdma`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> RdmaCollector:
    return RdmaCollector()


class RdmaCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
