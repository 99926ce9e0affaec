"""The collector `nfs`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> NfsCollector:
    return NfsCollector()


class NfsCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
