"""The collector `nic`: counters of network interfaces, from the kernel, sysfs and their drivers."""

from __future__ import annotations

import os
from collections.abc import Callable, Set

from ...linux import netdev
from ..collector import Options
from ..files import KeptFiles, Unreadable, names, number, read, word
from ..kernel.driver_counters import DriverCounters
from ..kernel.interfaces import LOOPBACK, Interface, Interfaces
from ..kernel.namespaces import HOST, RankNamespaces, node_folder
from ..metrics import nic
from ..metrics.metric import Metric
from ..reading import Absent, Labels, Reading

RECEIVE, TRANSMIT = "receive", "transmit"
MOST_PER_NAMESPACE = 16

_COLUMNS: tuple[tuple[int, Metric, str], ...] = (
    (netdev.RX_BYTES, nic.BYTES, RECEIVE),
    (netdev.TX_BYTES, nic.BYTES, TRANSMIT),
    (netdev.RX_PACKETS, nic.PACKETS, RECEIVE),
    (netdev.TX_PACKETS, nic.PACKETS, TRANSMIT),
    (netdev.RX_ERRORS, nic.ERRORS, RECEIVE),
    (netdev.TX_ERRORS, nic.ERRORS, TRANSMIT),
    (netdev.RX_DROPS, nic.DROPS, RECEIVE),
    (netdev.TX_DROPS, nic.DROPS, TRANSMIT),
)
_FAULTS: tuple[tuple[int, str, str], ...] = (
    (netdev.RX_FIFO, RECEIVE, "fifo"),
    (netdev.RX_FRAME, RECEIVE, "frame"),
    (netdev.TX_FIFO, TRANSMIT, "fifo"),
    (netdev.TX_COLLISIONS, TRANSMIT, "collision"),
    (netdev.TX_CARRIER, TRANSMIT, "carrier"),
)
_IN_NAMESPACE: tuple[tuple[int, Metric, str], ...] = (
    (netdev.RX_BYTES, nic.NAMESPACE_BYTES, RECEIVE),
    (netdev.TX_BYTES, nic.NAMESPACE_BYTES, TRANSMIT),
    (netdev.RX_DROPS, nic.NAMESPACE_DROPS, RECEIVE),
    (netdev.TX_DROPS, nic.NAMESPACE_DROPS, TRANSMIT),
)


def create(options: Options) -> NicCollector:
    return NicCollector(options)


def _speed(data: bytes) -> int | None:
    """The speed, or None for -1, which means unknown. Old drivers print -1 as an unsigned number."""
    if data.strip() in (b"-1", b"4294967295"):
        return None
    return number(data)


def _up(data: bytes) -> int | None:
    """1 if the state is up, otherwise 0. None for `unknown`, from drivers that do not track the state.

    See Documentation/networking/operstates.rst of the kernel.
    """
    state = word(data)
    if state not in _STATES:
        raise Unreadable("garbage")
    return None if state == "unknown" else int(state == "up")


_STATES = frozenset({"up", "down", "unknown", "dormant", "lowerlayerdown", "testing", "notpresent"})


def _full_duplex(data: bytes) -> int | None:
    try:
        return {"full": 1, "half": 0, "unknown": None}[word(data)]
    except KeyError:
        raise Unreadable("garbage") from None


_ATTRIBUTES: tuple[tuple[str, Metric, Callable[[bytes], int | None]], ...] = (
    ("statistics/rx_missed_errors", nic.MISSED, number),
    ("carrier_changes", nic.CARRIER_CHANGES, number),
    ("operstate", nic.UP, _up),
    ("speed", nic.SPEED, _speed),
    ("mtu", nic.MTU, number),
    ("duplex", nic.FULL_DUPLEX, _full_duplex),
)
_INVALID_WHEN_DOWN = frozenset({"speed", "duplex"})
"""Attributes whose read fails with EINVAL while the link is down or if the interface has no link."""


class NicCollector:
    def __init__(self, options: Options):
        self._roots = options.roots
        self._files = KeptFiles()
        self._interfaces = Interfaces(options.roots)
        self._namespaces = RankNamespaces(options)
        self._drivers = DriverCounters()
        self._names: set[str] = set()
        self._attributes: dict[str, list[tuple[str, str, Metric, Callable[[bytes], int | None], Labels]]] = {}
        self._seen: set[tuple[str, Labels]] = set()  # faults that were above 0 once, so that they stay exported

    def collect(self, reading: Reading) -> None:
        folder = node_folder(self._roots, reading)
        found = self._net_dev(f"{folder}/dev", reading)
        present = found.keys() or self._in_sysfs()
        if not present and not self._names:
            raise Absent(f"{folder}/dev")
        chosen = self._interfaces.look(present, folder)
        self._forget({interface.name for interface in chosen})
        for interface in chosen:
            if columns := found.get(interface.name):
                self._counters(interface.name, columns, reading)
            reading.add(nic.INFO, interface.labels, 1)
            if interface.name != LOOPBACK:
                self._read_attributes(interface, reading)
        self._drivers.collect([interface for interface in chosen if interface.bus], reading)
        if present:
            reading.add(nic.LEFT_OUT, (), len(present) - len(chosen))
        self._in_namespaces(folder, reading)

    def _net_dev(self, path: str, reading: Reading) -> dict[str, list[bytes]]:
        try:
            found = netdev.interfaces(self._files.text(path))
        except Unreadable as error:
            reading.error("", "net/dev", error.reason)
            return {}
        if found.bad:
            reading.error("", "net/dev", "garbage")
        return found.interfaces

    def _in_sysfs(self) -> Set[str]:
        """The interfaces in sysfs, used if net/dev cannot be read: the metrics from sysfs are still exported then."""
        folder = f"{self._roots.sysfs}/class/net"
        try:
            return {name for name in names(folder) if os.path.isdir(f"{folder}/{name}")}  # bonding_masters is a file
        except Unreadable:
            return set()

    def _forget(self, left: set[str]) -> None:
        for gone in self._names - left:
            self._files.drop_below(f"{self._roots.sysfs}/class/net/{gone}")
            self._attributes.pop(gone, None)
            self._seen = {seen for seen in self._seen if seen[0] != gone}
        self._names = left

    def _counters(self, name: str, columns: list[bytes], reading: Reading) -> None:
        try:
            values = netdev.values(columns)
        except Unreadable as error:
            reading.error(name, "net/dev", error.reason)
            return
        for column, metric, direction in _COLUMNS:
            reading.add(metric, (name, direction), values[column])
        for column, direction, kind in _FAULTS:
            labels = (name, direction, kind)
            if values[column] or (name, labels) in self._seen:
                self._seen.add((name, labels))
                reading.add(nic.FAULTS, labels, values[column])

    def _read_attributes(self, interface: Interface, reading: Reading) -> None:
        attributes = self._attributes.get(interface.name)
        if attributes is None:
            folder = f"{self._roots.sysfs}/class/net/{interface.name}"
            attributes = self._attributes[interface.name] = [
                (f"{folder}/{file}", file, metric, parse, (interface.name,)) for file, metric, parse in _ATTRIBUTES
            ]
        for path, file, metric, parse, labels in attributes:
            try:
                value = parse(self._files.attribute(path))
            except Unreadable as error:
                if error.reason == "invalid" and file in _INVALID_WHEN_DOWN:
                    continue
                reading.error(interface.name, file, error.reason)
                if error.reason in ("gone", "missing"):
                    self._interfaces.forget(interface.name)
                continue
            if value is not None:
                reading.add(metric, labels, value * metric.times)

    def _in_namespaces(self, folder: str, reading: Reading) -> None:
        for namespace in self._namespaces.look(folder, reading):
            if namespace.name == HOST:
                continue
            try:
                found = netdev.interfaces(read(f"{namespace.folder}/dev")).interfaces
            except Unreadable as error:
                if error.reason not in ("missing", "gone"):  # these mean that its process has ended
                    reading.error(namespace.name, "net/dev", error.reason)
                continue
            for name in sorted(found.keys() - {LOOPBACK})[:MOST_PER_NAMESPACE]:
                try:
                    values = netdev.values(found[name])
                except Unreadable as error:
                    reading.error(f"{namespace.name} {name}", "net/dev", error.reason)
                    continue
                for column, metric, direction in _IN_NAMESPACE:
                    reading.add(metric, (namespace.name, name, direction), values[column])
