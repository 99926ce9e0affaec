"""The collector `pressure`: how long tasks of the node stalled, by resource."""

from __future__ import annotations

import os

from ..collector import Options
from ..files import KeptFiles, Unreadable
from ..metrics.pressure import STALLED
from ..parsers import psi
from ..reading import Reading

RESOURCES = ("cpu", "io", "memory")
OPTIONAL = "irq"
"""Exists since Linux 6.1, and only in kernels that account for interrupt time."""


def create(options: Options) -> PressureCollector:
    return PressureCollector(f"{options.roots.procfs}/pressure")


class PressureCollector:
    def __init__(self, folder: str):
        self._folder = folder
        self._files = KeptFiles()
        self._irq = False  # whether the file of OPTIONAL has existed
        self._labels = {
            (resource, kind): (resource, kind) for resource in (*RESOURCES, OPTIONAL) for kind in ("some", "full")
        }
        # For a whole node, it is impossible that all tasks wait for a CPU: the kernel shows 0, or nothing before 5.13.
        del self._labels["cpu", "full"]

    def collect(self, reading: Reading) -> None:
        if not os.path.isdir(self._folder):
            self._blind(reading, "the kernel has no /proc/pressure")
            return
        for resource in RESOURCES:
            try:
                self._read(resource, reading)
            except Unreadable as error:
                if error.reason == "unsupported":
                    self._blind(reading, "it is switched off")
                else:
                    reading.error(resource, "pressure", error.reason)
        try:
            self._read(OPTIONAL, reading)
            self._irq = True
        except Unreadable as error:
            if self._irq or error.reason not in ("missing", "unsupported"):
                reading.error(OPTIONAL, "pressure", error.reason)

    def _read(self, resource: str, reading: Reading) -> None:
        found = psi.parse(self._files.text(f"{self._folder}/{resource}"))
        samples = reading.series(STALLED)
        for kind, microseconds in found.items():
            if labels := self._labels.get((resource, kind)):
                samples[labels] = microseconds / STALLED.per

    def _blind(self, reading: Reading, why: str) -> None:
        reading.blind("pressure stall information", why, "boot a kernel built with CONFIG_PSI with psi=1")
