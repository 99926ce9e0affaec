"""The collector `qdisc`: packets that traffic control (tc) holds back on the node's interfaces."""

from __future__ import annotations

import os
import time
from collections import defaultdict

from ...linux import traffic_control
from ...linux.qdisc import Qdisc
from ..collector import Options
from ..counters import Wrapping
from ..files import KeptFiles, Unreadable, names, number
from ..kernel.interfaces import REFRESH_SECONDS
from ..metrics.qdisc import BACKLOG, OVERLIMITS
from ..reading import Absent, Reading

MOST = 64
"""The maximum number of interfaces that are reported."""
LEFT_OUT = frozenset({"noqueue", "mq", "mqprio", "ingress", "clsact"})
"""Queueing disciplines that queue nothing themselves, or repeat the counts of those below them."""

_ELSEWHERE = (
    "what traffic control (tc) holds back on the node's interfaces",
    "the agent is not in the network namespace of the interfaces",
    "give the agent the host's network (hostNetwork: true)",
)
_REFUSED = (
    "what traffic control (tc) holds back on the node's interfaces",
    "the agent may not open netlink sockets",
    "allow AF_NETLINK in the container's seccomp profile",
)


def create(options: Options) -> QdiscCollector:
    return QdiscCollector(options.roots.sysfs)


class QdiscCollector:
    """Reports the interfaces that have the same name and number in netlink and in sysfs.

    Netlink shows the agent's own network namespace, sysfs that of the process that mounted it.
    """

    def __init__(self, sysfs: str):
        self._class = f"{sysfs}/class/net"
        self._files = KeptFiles()
        self._names: dict[int, str] = {}
        self._until = 0.0
        self._overlimits: Wrapping[tuple[int, int, int]] = Wrapping()

    def collect(self, reading: Reading) -> None:
        try:
            found, bad = traffic_control.qdiscs()
        except Unreadable as error:
            if error.reason in ("denied", "unsupported"):
                reading.blind(*_REFUSED)
            else:
                reading.error("", "RTM_GETQDISC", error.reason)
            return
        if bad:
            reading.error("", "RTM_GETQDISC", "garbage")
        queues = [one for one in found if one.kind not in LEFT_OUT]
        if not queues:
            raise Absent("queueing disciplines on interfaces")
        known = self._interfaces({one.interface for one in queues}, reading)
        if not known:
            reading.blind(*_ELSEWHERE)
            return
        self._report([one for one in queues if one.interface in known], known, reading)

    def _interfaces(self, wanted: set[int], reading: Reading) -> dict[int, str]:
        """Number -> name, for interfaces that are the same in sysfs and in the agent's namespace."""
        now = time.monotonic()
        if now >= self._until or not wanted <= self._names.keys():
            self._names = self._look(wanted, reading)
            self._until = now + REFRESH_SECONDS
        return {index: self._names[index] for index in sorted(wanted & self._names.keys())[:MOST]}

    def _look(self, wanted: set[int], reading: Reading) -> dict[int, str]:
        found: dict[int, str] = {}
        try:
            interfaces = names(self._class)
        except Unreadable as error:
            reading.error("", "class/net", error.reason)
            return found
        for name in interfaces:
            path = f"{self._class}/{name}"
            if not os.path.isdir(path):
                continue  # bonding_masters is a file, not an interface
            try:
                index = number(self._files.attribute(f"{path}/ifindex"))
                if index in wanted and traffic_control.index(name) == index:
                    found[index] = name
            except Unreadable as error:
                if error.reason not in ("gone", "missing"):
                    reading.error(name, "ifindex", error.reason)
        self._files.close()
        return found

    def _report(self, queues: list[Qdisc], known: dict[int, str], reading: Reading) -> None:
        overlimits: defaultdict[tuple[str, str], int] = defaultdict(int)
        backlog: defaultdict[tuple[str, str], int] = defaultdict(int)
        for one in queues:
            labels = (known[one.interface], one.kind)
            overlimits[labels] += self._overlimits.value(_key(one), one.overlimits)
            backlog[labels] += one.backlog_bytes
        self._overlimits.keep({_key(one) for one in queues})
        for labels in overlimits:
            reading.add(OVERLIMITS, labels, overlimits[labels])
            reading.add(BACKLOG, labels, backlog[labels])


def _key(of: Qdisc) -> tuple[int, int, int]:
    return of.interface, of.handle, of.parent
