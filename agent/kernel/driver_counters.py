"""Reads the counters of network drivers: pauses, PCIe back-pressure, discards."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from ..files import Unreadable
from ..metrics.metric import Metric
from ..metrics.nic_drivers import DRIVER_COUNTERS
from ..reading import Labels, Reading
from .ethtool import Ethtool
from .interfaces import REFRESH_SECONDS, Interface

_STRINGS, _STATS, _DRVINFO = "ETHTOOL_GSTRINGS", "ETHTOOL_GSTATS", "ETHTOOL_GDRVINFO"
_REFUSED = (
    "the network drivers' own counters (PFC pauses, PCIe stalls, discards)",
    "the agent may not use the ioctl SIOCETHTOOL",
    "allow the ioctl in the container's seccomp profile, or add the capability NET_ADMIN",
)
_ELSEWHERE = (
    "the network drivers' own counters (PFC pauses, PCIe stalls, discards)",
    "the agent is not in the network namespace of the interfaces",
    "give the agent the host's network (hostNetwork: true)",
)


@dataclass(slots=True)
class _Wanted:
    """The counters of one interface that are exported."""

    count: int  # number of all counters of the interface
    series: list[tuple[Metric, Labels, tuple[int, ...]]]  # with the positions of the counters to add up
    until: float


class DriverCounters:
    """Reads driver counters through ethtool. Not thread-safe.

    The names of an interface's counters are read only every 30 seconds: they take a driver longer than the values, and
    they change only when its queues or priorities are reconfigured.
    """

    def __init__(self) -> None:
        self._ethtool = Ethtool()
        self._wanted: dict[str, _Wanted] = {}
        self._buses: dict[str, str] = {}
        self._seen: dict[str, set[tuple[Metric, Labels]]] = {}

    def collect(self, interfaces: Collection[Interface], reading: Reading) -> None:
        """Adds the counters of interfaces with a known driver."""
        now = time.monotonic()
        for gone in self._buses.keys() - {interface.name for interface in interfaces}:
            self._forget(gone)
        for interface in interfaces:
            if interface.driver not in DRIVER_COUNTERS:
                continue
            if self._buses.get(interface.name) != interface.bus:  # another device has this name now
                self._forget(interface.name)
                self._buses[interface.name] = interface.bus
            wanted = self._wanted.get(interface.name)
            if wanted is None or now >= wanted.until:
                wanted = self._ask(interface, now, reading)
            if wanted and wanted.series:
                self._read(interface.name, wanted, reading)

    def _forget(self, name: str) -> None:
        for kept in (self._wanted, self._buses, self._seen):
            kept.pop(name, None)

    def _ask(self, interface: Interface, now: float, reading: Reading) -> _Wanted | None:
        """Reads the names of an interface's counters and selects the exported ones. None if they cannot be read."""
        self._wanted.pop(interface.name, None)
        call = _DRVINFO
        try:
            # In the agent's network namespace, another interface may have this name. The bus address shows that.
            bus = self._ethtool.driver(interface.name).bus
            if not bus or not interface.bus.startswith(bus):  # bus has at most 31 characters
                raise Unreadable("gone")
            call = _STRINGS
            names = self._ethtool.names(interface.name)
        except Unreadable as error:
            self._tell(interface.name, call, error.reason, reading)
            if error.reason != "unsupported":
                return None
            names = ()
        wanted = _Wanted(len(names), _series(interface, names), now + REFRESH_SECONDS)
        self._wanted[interface.name] = wanted
        return wanted

    def _read(self, name: str, wanted: _Wanted, reading: Reading) -> None:
        try:
            values = self._ethtool.values(name, wanted.count)
        except Unreadable as error:
            self._wanted.pop(name, None)
            self._tell(name, _STATS, error.reason, reading)
            return
        if values is None:
            self._wanted.pop(name, None)  # it was just reconfigured: the next scrape reads the names again
            reading.error(name, _STATS, "changed")
            return
        seen = self._seen.setdefault(name, set())
        for metric, labels, places in wanted.series:
            value = values[places[0]] if len(places) == 1 else sum(values[place] for place in places)
            if metric.sparse:
                if not value and (metric, labels) not in seen:
                    continue
                seen.add((metric, labels))
            reading.add(metric, labels, metric.base(value))

    def _tell(self, name: str, call: str, reason: str, reading: Reading) -> None:
        if reason == "denied" or (reason == "gone" and call == _DRVINFO):
            blind = _REFUSED if reason == "denied" else _ELSEWHERE
            if blind not in reading.blind_spots:
                reading.blind(*blind)
        elif reason != "unsupported":
            reading.error(name, call, reason)


def _series(interface: Interface, names: tuple[str, ...]) -> list[tuple[Metric, Labels, tuple[int, ...]]]:
    counters = DRIVER_COUNTERS[interface.driver]
    places: dict[tuple[Metric, Labels], list[int]] = {}
    for place, name in enumerate(names):
        if counter := counters.get(name):
            places.setdefault((counter.metric, (interface.name, *counter.labels)), []).append(place)
    return [(metric, labels, tuple(found)) for (metric, labels), found in places.items()]
