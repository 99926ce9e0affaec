"""The collector `lustre`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> LustreCollector:
    return LustreCollector()


class LustreCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
