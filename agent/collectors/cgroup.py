"""The collector `cgroup`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> CgroupCollector:
    return CgroupCollector()


class CgroupCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
