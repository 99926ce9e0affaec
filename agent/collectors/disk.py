"""The collector `disk`: the kernel's counters of block devices."""

from __future__ import annotations

import re

from ..collector import Options
from ..counters import Wrapping
from ..files import KeptFiles, Unreadable, word
from ..metrics.disk import FIELDS, INFO, MS
from ..parsers.diskstats import Disk, is_partition, parse
from ..reading import Absent, Labels, Reading

MOST_DISKS = 64
LEFT_OUT = re.compile(r"(?:loop|ram|zram|sr|fd)\d+")
_STACKED = re.compile(r"(dm|md)[-_]?\w+")
_ROTATIONAL = "queue/rotational"
_ATTRIBUTES = {"disk": (None, "device/model", _ROTATIONAL), "dm": ("dm/name", None, _ROTATIONAL)}

# The kernel prints milliseconds with 32 bits (fields 4, 8, 10, 11, 15 and 17). With deep queues, field 11 wraps within
# hours.
_COLUMNS = tuple((number - 1, metric, metric.per == MS) for number, metric in FIELDS.items())


def create(options: Options) -> DiskCollector:
    return DiskCollector(options.roots.procfs, options.roots.sysfs)


class DiskCollector:
    """Reads whole disks that have done I/O since boot. The help of whyidle_disk_info says which disks are left out."""

    def __init__(self, procfs: str, sysfs: str):
        self._diskstats = f"{procfs}/diskstats"
        self._block = f"{sysfs}/block"
        self._files = KeptFiles()
        self._wrapping: Wrapping[tuple[str, int]] = Wrapping()
        self._labels: dict[str, Labels] = {}
        self._known: set[str] = set()  # paths of attributes that have existed

    def collect(self, reading: Reading) -> None:
        try:
            found, bad = parse(self._files.text(self._diskstats))
        except Unreadable as error:
            if error.reason == "empty":
                raise Absent("block devices in diskstats") from error
            reading.error("", "diskstats", error.reason)
            return
        for name in bad:
            reading.error(name, "diskstats", "garbage")
        disks = self._choose(found, reading)
        self._counters(disks, reading)
        info = reading.series(INFO)
        for disk in disks:
            info[self._info(disk.name, reading)] = 1
        # A disk whose line could not be parsed this time still exists.
        self._forget({disk.name for disk in disks}.union(bad))

    def _choose(self, found: dict[str, Disk], reading: Reading) -> list[Disk]:
        disks = [
            disk
            for name, disk in found.items()
            if not (LEFT_OUT.fullmatch(name) or is_partition(name, found) or disk.idle)
        ]
        if len(disks) > MOST_DISKS:
            reading.blind(
                "some of the disks", f"only the first {MOST_DISKS} are read", "read the others with node_exporter"
            )
        return disks[:MOST_DISKS]

    def _counters(self, disks: list[Disk], reading: Reading) -> None:
        rows = [(self._label(disk.name), disk.name, disk.fields()) for disk in disks]
        for column, metric, wraps in _COLUMNS:
            samples = reading.series(metric)
            times, per = metric.times, metric.per
            for labels, name, fields in rows:
                if column >= len(fields):
                    continue
                if wraps:
                    samples[labels] = self._wrapping.value((name, column), fields[column]) / per
                else:
                    samples[labels] = fields[column] * times

    def _label(self, name: str) -> Labels:
        return self._labels.setdefault(name, (name,))

    def _info(self, name: str, reading: Reading) -> Labels:
        stacked = _STACKED.fullmatch(name)
        kind = stacked[1] if stacked else "disk"
        attributes = _ATTRIBUTES.get(kind, (None, None, _ROTATIONAL))
        return name, kind, *((file and self._attribute(name, file, reading)) or "" for file in attributes)

    def _attribute(self, name: str, file: str, reading: Reading) -> str:
        """An attribute that may be missing: virtual disks have no model, and containers may have no /sys/block."""
        path = f"{self._block}/{name.replace('/', '!')}/{file}"
        try:
            text = word(self._files.attribute(path))
            if file == _ROTATIONAL and text not in ("0", "1"):
                raise Unreadable("garbage")
        except Unreadable as error:
            self._files.drop(path)
            if error.reason != "missing" or path in self._known:
                reading.error(name, file, error.reason)
            return ""
        self._known.add(path)
        return text

    def _forget(self, names: set[str]) -> None:
        gone = self._labels.keys() - names
        if gone:
            self._wrapping.keep([(name, column) for name in names for column, _, wraps in _COLUMNS if wraps])
        for name in gone:
            del self._labels[name]
            folder = f"{self._block}/{name.replace('/', '!')}"
            self._files.drop_below(folder)
            self._known = {path for path in self._known if not path.startswith(f"{folder}/")}
