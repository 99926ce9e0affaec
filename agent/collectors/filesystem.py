"""The collector `filesystem`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> FilesystemCollector:
    return FilesystemCollector()


class FilesystemCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
