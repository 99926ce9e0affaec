"""The collector `identity`."""

from __future__ import annotations

from ..collector import Options
from ..reading import Absent, Reading


def create(options: Options) -> IdentityCollector:
    return IdentityCollector()


class IdentityCollector:
    def collect(self, reading: Reading) -> None:
        raise Absent("not built yet")
