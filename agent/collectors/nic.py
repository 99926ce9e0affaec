"""The collector `nic`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> NicCollector:
    return NicCollector()


class NicCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
