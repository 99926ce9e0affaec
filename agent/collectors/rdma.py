"""The collector `rdma`: every device and port under /sys/class/infiniband.

The files to read are determined once per device, and again when one of its directories changes. A scrape then needs one
pread per file. The files of a directory are read one after another, because a driver asks its adapter only once for all
counters that are read within its `lifespan` of 10 ms.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from ...linux import infiniband
from ..collector import Options
from ..counters import Wrapping
from ..files import LISTING_SECONDS, KeptFiles, Unreadable, number, read, word
from ..metrics import rdma_port as metrics
from ..metrics.metric import Metric
from ..metrics.rdma import COUNTERS, HW_COUNTERS
from ..metrics.rdma_errors import INNER_LIFE, NOT_EXPORTED, WRAPPING
from ..metrics.rdma_row import U64_MAX, Row
from ..reading import Absent, Labels, Reading

MOST_DEVICES = 256
MOST_PORTS = 64
MOST_UNKNOWN = 20
"""The maximum number of unknown files that are listed by name per port. All of them are counted."""

_DEVICE_FILES = ("board_id", "fw_ver", "hca_type", "node_guid")
"""In the order of the labels. Some drivers lack one or more of them: irdma, efa and rxe."""

Listing = tuple[tuple[str, ...], ...]

_state = lru_cache(256)(infiniband.state)
_rate = lru_cache(256)(infiniband.rate)
_word = lru_cache(4096)(word)


def create(options: Options) -> RdmaCollector:
    return RdmaCollector(options.roots.sysfs)


class _Counter(NamedTuple):
    """One file that is read at each scrape."""

    path: str
    file: str  # its name in read errors
    metric: Metric
    labels: Labels
    times: int
    ceiling: int
    sparse: bool
    wraps: bool


@dataclass(slots=True)
class _Device:
    """What is read of one device."""

    name: str
    path: str
    listing: Listing = ()
    ports: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # the existing ones of _DEVICE_FILES
    counters: list[_Counter] = field(default_factory=list)
    unknown: list[tuple[Metric, Labels, int]] = field(default_factory=list)
    inode: int = 0  # inode of its directory
    linked: float = float("-inf")  # when driver, pci and netdevs were looked up
    driver: str = ""
    pci: str = ""
    netdevs: dict[str, str] = field(default_factory=dict)  # by port


class RdmaCollector:
    """Reads all devices at each scrape. Notices devices and ports that are added or removed."""

    def __init__(self, sysfs: str):
        self._root = os.path.join(sysfs, "class/infiniband")
        self._files = KeptFiles()
        self._devices: dict[str, _Device] = {}
        self._wrapping: Wrapping[str] = Wrapping()

    def collect(self, reading: Reading) -> None:
        known, self._devices = self._devices, {}
        for name in self._names(reading):
            self._devices[name] = known.get(name) or _Device(name, f"{self._root}/{name}")
        if known.keys() != self._devices.keys():
            self._forget_wraps()
        for device in self._devices.values():
            self._look(device, reading)
            self._identity(device, reading)
            for port in device.ports:
                self._port(device, port, reading)
            self._counters(device, reading)

    def close(self) -> None:
        """Closes the kept files."""
        self._files.close()

    def _names(self, reading: Reading) -> tuple[str, ...]:
        try:
            names = self._files.names(self._root)
        except Unreadable as error:
            if error.reason != "missing":
                reading.error("", "class/infiniband", error.reason)
                return ()
            names = ()
        if not names:
            raise Absent(f"no RDMA device under {self._root}")
        if len(names) > MOST_DEVICES:
            reading.error("", "class/infiniband", "huge")
        return names[:MOST_DEVICES]

    def _look(self, device: _Device, reading: Reading) -> None:
        """Determines the files to read again, if the device or its directories have changed."""
        inode = _inode(device.path)
        if inode != device.inode:  # registered again, for example after a reset: lower counters are not wraps
            device.inode, device.listing, device.counters = inode, (), []
            self._forget_wraps()
        now = time.monotonic()
        listing = tuple(self._listings(device, reading))
        if listing != device.listing or now - device.linked >= LISTING_SECONDS:
            device.linked = now
            device.driver, device.pci = _parent(device.path)
            device.netdevs = {port: _netdev(device.path, port) for port in device.ports}
        if listing != device.listing:
            device.listing = listing
            device.files = tuple(file for file in _DEVICE_FILES if file in listing[0])
            _plan(device)
            self._forget_wraps()

    def _listings(self, device: _Device, reading: Reading) -> Iterator[tuple[str, ...]]:
        """The listings of a device: itself, hw_counters, ports; then of each port: itself, counters, hw_counters."""
        files = self._directory(device, "", reading)
        yield files
        yield self._directory(device, "hw_counters", reading) if "hw_counters" in files else ()
        ports = self._directory(device, "ports", reading)
        yield ports
        device.ports = tuple(port for port in ports if port.isdigit() and len(port) <= 3)[:MOST_PORTS]
        for port in device.ports:
            files = self._directory(device, f"ports/{port}", reading)
            yield files
            for folder in ("counters", "hw_counters"):
                yield self._directory(device, f"ports/{port}/{folder}", reading) if folder in files else ()

    def _directory(self, device: _Device, folder: str, reading: Reading) -> tuple[str, ...]:
        try:
            return self._files.names(f"{device.path}/{folder}" if folder else device.path)
        except Unreadable as error:
            reading.error(device.name, folder, error.reason)
            return ()

    def _identity(self, device: _Device, reading: Reading) -> None:
        found = [self._text(device, file, reading) if file in device.files else "" for file in _DEVICE_FILES]
        reading.add(metrics.INFO, (device.name, device.driver, device.pci, *found), 1)

    def _text(self, device: _Device, file: str, reading: Reading) -> str:
        """A line of text, or an empty string if it cannot be read."""
        try:
            return _word(self._files.attribute(f"{device.path}/{file}"))
        except Unreadable as error:
            # fw_ver is empty if the driver has no firmware version.
            if error.reason != "empty" or file != "fw_ver":
                reading.error(device.name, file, error.reason)
            return ""

    def _port(self, device: _Device, port: str, reading: Reading) -> None:
        """Adds the state, rate and identity of a port, as far as they can be read."""
        labels = (device.name, port)
        state = self._number(device, f"ports/{port}/state", reading)
        if state is not None:
            reading.add(metrics.STATE, labels, state)
            reading.add(metrics.UP, labels, int(state == infiniband.ACTIVE))
        physical = self._number(device, f"ports/{port}/phys_state", reading)
        if physical is not None:
            reading.add(metrics.PHYSICAL_STATE, labels, physical)
        rate = None
        if state != infiniband.DOWN:  # for a link that is down, drivers report 2.5, 10 or the last rate
            rate = self._rate(device, f"ports/{port}/rate", reading)
        if rate:
            reading.add(metrics.RATE, labels, rate.bytes_per_second)
        layer = self._text(device, f"ports/{port}/link_layer", reading)
        lid = self._text(device, f"ports/{port}/lid", reading)
        width, generation = rate[1:] if rate else ("", "")
        netdev = device.netdevs.get(port, "")
        reading.add(metrics.PORT_INFO, (*labels, layer, netdev, lid, width, generation), 1)

    def _number(self, device: _Device, file: str, reading: Reading) -> int | None:
        try:
            return _state(self._files.attribute(f"{device.path}/{file}"))
        except Unreadable as error:
            reading.error(device.name, file, error.reason)
            return None

    def _rate(self, device: _Device, file: str, reading: Reading) -> infiniband.Rate | None:
        try:
            return _rate(self._files.attribute(f"{device.path}/{file}"))
        except Unreadable as error:
            reading.error(device.name, file, error.reason)
            return None

    def _counters(self, device: _Device, reading: Reading) -> None:
        read_number, samples = self._files.number, reading.samples
        for path, file, metric, labels, times, ceiling, sparse, wraps in device.counters:
            try:
                value = read_number(path)
            except Unreadable as error:
                reading.error(device.name, file, error.reason)
                continue
            if value == ceiling:
                _at_ceiling(device.name, file, labels, ceiling, reading)
                continue
            if wraps:
                value = self._wrapping.value(path, value)
            if value or not sparse:
                try:
                    samples[metric][labels] = value * times
                except KeyError:
                    samples[metric] = {labels: value * times}
        for metric, labels, value in device.unknown:
            reading.add(metric, labels, value)

    def _forget_wraps(self) -> None:
        self._wrapping.keep({one.path for device in self._devices.values() for one in device.counters if one.wraps})


def _at_ceiling(device: str, file: str, labels: Labels, ceiling: int, reading: Reading) -> None:
    """Reports a counter that has stopped at its maximum, or has no value (all ones of 64 bits). It is not exported,
    because its rate is unknown, not 0.
    """
    if ceiling == U64_MAX:
        reading.error(device, file, "unsupported")
    else:
        reading.add(metrics.SATURATED, (device, labels[1], os.path.basename(file)), 1)


def _plan(device: _Device) -> None:
    """Sets the counters to read. If several files have the same meaning, only one is read: InfiniBand's own counters
    are preferred to the vendor's, and those of ports to those of the device.
    """
    device.counters, device.unknown = [], []
    of_device = device.listing[1]
    of_ports = [device.listing[at : at + 3] for at in range(3, len(device.listing), 3)]
    taken: set[tuple[Metric, Labels]] = set()
    for port, (_, counters, hw_counters) in zip(device.ports, of_ports, strict=True):
        _plan_folder(device, port, f"ports/{port}/counters", counters, COUNTERS, taken)
        _plan_folder(device, port, f"ports/{port}/hw_counters", hw_counters, HW_COUNTERS, taken)
    # mlx4 has its counters per port and, under the same names, their sum for the device. The sum is not read.
    once = {file for _, _, hw_counters in of_ports for file in hw_counters}
    _plan_folder(device, "", "hw_counters", tuple(f for f in of_device if f not in once), HW_COUNTERS, taken)


def _plan_folder(
    device: _Device,
    port: str,
    folder: str,
    files: tuple[str, ...],
    table: dict[str, Row],
    taken: set[tuple[Metric, Labels]],
) -> None:
    wrapping, inner_life = WRAPPING.get(device.driver, ()), INNER_LIFE.get(device.driver, ())
    unknown: list[str] = []
    for file in files:
        name = file.removeprefix("vport_")  # mlx5 in switchdev mode: counters of the functions behind the port
        row = table.get(name)
        if not row:
            if name not in NOT_EXPORTED and not (inner_life and file.startswith(inner_life)):
                unknown.append(file)
            continue
        labels = (device.name, port, *row.extra)
        if (row.metric, labels) not in taken:
            taken.add((row.metric, labels))
            path, short = f"{device.path}/{folder}/{file}", f"{folder}/{file}"
            fixed = (row.times, row.ceiling, row.metric.sparse, name in wrapping)
            device.counters.append(_Counter(path, short, row.metric, labels, *fixed))
    if unknown:
        kind = folder.rpartition("/")[2]
        listed = [(device.name, port, f"{kind}/{file}"[:128]) for file in unknown[:MOST_UNKNOWN]]
        device.unknown += [(metrics.UNKNOWN_INFO, labels, 1) for labels in listed]
        device.unknown.append((metrics.UNKNOWN, (device.name, port), len(unknown)))


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _parent(path: str) -> tuple[str, str]:
    """The driver and the address of a device's PCI function. Both are empty for software devices such as rxe."""
    try:
        pci = os.path.basename(os.readlink(f"{path}/device"))
    except OSError:
        return "", ""
    try:
        return os.path.basename(os.readlink(f"{path}/device/driver")), pci
    except OSError:
        return _driver_of_uevent(f"{path}/device"), pci


def _driver_of_uevent(parent: str) -> str:
    try:
        lines = read(f"{parent}/uevent").decode(errors="replace").splitlines()
    except Unreadable:
        return ""
    return next((line[7:].strip() for line in lines if line.startswith("DRIVER=")), "")


def _netdev(path: str, port: str) -> str:
    """The network interface of a port: that of its first GID (RoCE only), or the only one of the PCI function."""
    try:
        return word(read(f"{path}/ports/{port}/gid_attrs/ndevs/0"))
    except Unreadable:  # EINVAL if there is none
        pass
    try:
        found = sorted(os.listdir(f"{path}/device/net"))
    except OSError:
        return ""
    mine = [netdev for netdev in found if _device_port(f"{path}/device/net/{netdev}") == int(port) - 1]
    if len(mine) == 1:
        return mine[0]
    return found[0] if len(found) == 1 else ""


def _device_port(netdev: str) -> int:
    """The port of an interface in its PCI function, from 0, or -1 if unknown. mlx4 has several ports per function."""
    try:
        return number(read(f"{netdev}/dev_port"))
    except Unreadable:
        return -1
