"""The collector `cpu`: CPU time of the node by mode, load averages, and other values of /proc/stat."""

from __future__ import annotations

import os
import time

from ..collector import Options
from ..files import KeptFiles, Unreadable, names, number, read, word
from ..metrics.cpu import FREQUENCY_LIMIT, LINES, LOAD, ONLINE, SECONDS
from ..parsers import numa, stat
from ..reading import Labels, Reading

_WINDOWS = (("1m",), ("5m",), ("15m",))
_NOT_MONOTONE = ("idle", "iowait")
"""Modes that can decrease: iowait by the kernel's documentation, idle when a CPU goes offline."""

POLICIES_SECONDS = 60.0
"""How often frequency policies are read. Many machines have one per CPU, and they rarely change."""


def create(options: Options) -> CpuCollector:
    return CpuCollector(options.roots.procfs, options.roots.sysfs)


class CpuCollector:
    def __init__(self, procfs: str, sysfs: str = "/nonexistent"):
        self._policies = f"{sysfs}/devices/system/cpu/cpufreq"
        self._limits: dict[Labels, float] = {}
        self._limits_until = 0.0
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

        self._frequencies(reading)

    def _frequencies(self, reading: Reading) -> None:
        now = time.monotonic()
        if now >= self._limits_until:
            self._limits, self._limits_until = {}, now + POLICIES_SECONDS
            try:
                policies = [name for name in names(self._policies) if name.startswith("policy")]
            except Unreadable:  # a virtual machine, or a container without sysfs
                policies = []
            for policy in policies:
                try:
                    self._limit(f"{self._policies}/{policy}")
                except Unreadable as error:
                    reading.error("", "cpufreq/policy", error.reason)
        reading.series(FREQUENCY_LIMIT).update(self._limits)

    def _limit(self, policy: str) -> None:
        """Raises Unreadable."""
        of: Labels = (word(read(f"{policy}/scaling_governor")), word(read(f"{policy}/scaling_driver")))
        files = ("scaling_min_freq", "scaling_max_freq", "cpuinfo_max_freq")
        limit = numa.frequency_limit(*of, *(number(read(f"{policy}/{file}")) for file in files))
        if limit is not None:
            self._limits[of] = min(limit, self._limits.get(of, 1.0))

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
