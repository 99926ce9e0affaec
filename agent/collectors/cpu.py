"""The collector `cpu`: CPU time of the node by mode, load averages, and other values of /proc/stat."""

from __future__ import annotations

import os

from ..collector import Options
from ..files import KeptFiles, Unreadable
from ..metrics.cpu import LINES, LOAD, ONLINE, SECONDS
from ..parsers import stat
from ..reading import Reading

_WINDOWS = (("1m",), ("5m",), ("15m",))
_NOT_MONOTONE = ("idle", "iowait")
"""Modes that can decrease: iowait by the kernel's documentation, idle when a CPU goes offline."""


def create(options: Options) -> CpuCollector:
    return CpuCollector(options.roots.procfs)


class CpuCollector:
    def __init__(self, procfs: str):
        self._stat = f"{procfs}/stat"
        self._loadavg = f"{procfs}/loadavg"
        self._files = KeptFiles()
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._labels = {mode: (mode,) for mode in stat.MODES}
        self._highest: dict[str, int] = {}

    def collect(self, reading: Reading) -> None:
        try:
            self._read_stat(reading)
        except Unreadable as error:
            reading.error("", "stat", error.reason)
        try:
            averages = stat.load(self._files.text(self._loadavg))
        except Unreadable as error:
            reading.error("", "loadavg", error.reason)
        else:
            reading.series(LOAD).update(zip(_WINDOWS, averages, strict=True))

    def _read_stat(self, reading: Reading) -> None:
        found = stat.parse(self._files.text(self._stat))
        for line in found.bad:
            reading.error("", f"stat, {line}", "garbage")
        if found.ticks:
            samples = reading.series(SECONDS)
            for mode, ticks in found.ticks.items():
                samples[self._labels[mode]] = self._grown(mode, ticks) / self._hertz
        if found.online:
            reading.add(ONLINE, (), found.online)
        for line, value in found.values.items():
            reading.add(LINES[line], (), value)

    def _grown(self, mode: str, ticks: int) -> int:
        """The ticks without small decreases, which Prometheus would take for a restart from 0."""
        if mode in _NOT_MONOTONE:
            highest = self._highest.get(mode, 0)
            ticks = highest if highest // 2 < ticks < highest else ticks
            self._highest[mode] = ticks
        return ticks
