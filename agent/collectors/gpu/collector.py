from __future__ import annotations

from ...collector import Options
from ...reading import Absent, Reading


class GpuCollector:
    def __init__(self, options: Options):
        pass

    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
