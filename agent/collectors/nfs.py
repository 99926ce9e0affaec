"""The collector `nfs`: what the NFS client counts per mount. Nothing in here asks a server for anything."""

from __future__ import annotations

from collections.abc import Iterable

from ..collector import Options
from ..files import KeptFiles, Unreadable
from ..metrics.nfs import BYTES, IDLE, INFO, MS, OPERATIONS, RETRANSMISSIONS, TIMEOUTS, TRANSPORT, TRANSPORTS
from ..parsers.mountstats import Block, Mount, Operation, parse, split, super_blocks
from ..reading import Absent, Reading

MOST_MOUNTS = 32
MOUNTSTATS_BYTES = 16 << 20
"""4 kB per mount of NFS 4.2, and a mount per pod and volume."""
CLASSES: dict[bytes, str] = {
    b"READ": "read",
    b"READ_PLUS": "read",
    b"WRITE": "write",
    b"COMMIT": "commit",
    b"GETATTR": "getattr",
    b"LOOKUP": "lookup",
    b"LOOKUPP": "lookup",
    b"OPEN": "open",
    b"OPEN_CONFIRM": "open",
    b"OPEN_NOATTR": "open",
    b"OPEN_DOWNGRADE": "open",
    b"CLOSE": "close",
}
"""Operation -> the label it goes under; all else is `other`. NFS 3 knows no open and no close."""
_OF_NODE = "1"
_OWN = "self"


def create(options: Options) -> NfsCollector:
    return NfsCollector(options.roots.procfs)


class NfsCollector:
    """The mounts that process 1 of the given procfs has, which are the node's; else those that the agent has."""

    def __init__(self, procfs: str):
        self._procfs = procfs
        self._files = KeptFiles()

    def collect(self, reading: Reading) -> None:
        whose, data = self._read(reading)
        if data is None:
            return
        file = f"{whose}/mountstats"
        try:
            blocks, strays = split(data)
        except Unreadable as error:
            reading.error("", file, error.reason)
            return
        if strays:
            reading.error("", file, "garbage")
        elif not blocks:
            raise Absent(f"NFS mounts in {file}")
        for block, device in self._distinct(blocks, whose, reading):
            try:
                mount = parse(block.body)
            except Unreadable as error:
                reading.error(block.mount, file, error.reason)
                continue
            _info(block, mount.options, device, reading)
            _bytes(block.mount, mount, reading)
            _operations(block.mount, mount, reading)
            _transports(block.mount, mount, reading)

    def _read(self, reading: Reading) -> tuple[str, bytes | None]:
        """mountstats is for its process's user alone, and pid 1 is root's."""
        for whose in (_OF_NODE, _OWN):
            try:
                data = self._files.text(f"{self._procfs}/{whose}/mountstats", MOUNTSTATS_BYTES)
            except Unreadable as error:
                if whose == _OWN or error.reason != "denied":
                    reading.error("", f"{whose}/mountstats", error.reason)
                    break
            else:
                if whose == _OWN and not self._same_namespace():
                    reading.blind(
                        "NFS mounts other than the agent's own",
                        "/proc/1/mountstats belongs to root",
                        "run the agent as root, or mount the NFS volumes into its container",
                    )
                return whose, data
        return "", None

    def _same_namespace(self) -> bool:
        """Ids of mounts are unique on a node, so whoever has the same root mount sees the same mounts."""
        try:
            own, node = (self._files.text(f"{self._procfs}/{whose}/mountinfo") for whose in (_OWN, _OF_NODE))
        except Unreadable:
            return False
        return own.split(b" ", 1)[0] == node.split(b" ", 1)[0]

    def _distinct(self, blocks: list[Block], whose: str, reading: Reading) -> list[tuple[Block, str]]:
        """One mount per file system, with its device number.

        Kubernetes binds a volume into every pod that uses it; all those mounts show the same counters.
        """
        file = f"{whose}/mountinfo"
        try:
            rows = super_blocks(self._files.text(f"{self._procfs}/{file}"), "nfs", "nfs4")
            if not rows:  # though mountstats has some
                raise Unreadable("garbage")
        except Unreadable as error:
            reading.error("", file, error.reason)
            rows = []
        # Of mounts on top of each other, the last is the one that can be seen.
        devices = {mount: device for device, mount, _ in rows}
        by_place = {block.mount: block for block in blocks}
        distinct: dict[str, tuple[Block, str]] = {}
        for place, block in by_place.items():
            device = devices.get(place, "")
            distinct.setdefault(device or place, (block, device))
        if len(distinct) > MOST_MOUNTS:
            reading.blind(
                "some of the NFS mounts",
                f"only the first {MOST_MOUNTS} are read",
                "unmount file systems that are not used",
            )
        return list(distinct.values())[:MOST_MOUNTS]


def _info(block: Block, options: dict[str, str], device: str, reading: Reading) -> None:
    server, slash, export = block.device.partition(":/")  # an IPv6 address stands in brackets
    labels = (server, slash[1:] + export, options.get("vers", ""), options.get("proto", ""), device)
    reading.add(INFO, (block.mount, *labels), 1)


def _bytes(place: str, mount: Mount, reading: Reading) -> None:
    for metric, value in zip(BYTES, mount.bytes, strict=False):
        reading.add(metric, (place,), value)


def _operations(place: str, mount: Mount, reading: Reading) -> None:
    sums: dict[str, Operation] = {}
    retransmissions = timeouts = 0
    for name, operation in mount.operations.items():
        kind = CLASSES.get(name, "other")
        known = sums.get(kind)
        sums[kind] = operation if known is None else _add(known, operation)
        retransmissions += operation.transmissions - operation.requests
        timeouts += operation.major_timeouts
    for field, metric in OPERATIONS.items():
        samples = reading.series(metric)
        for kind, operation in sums.items():
            value = getattr(operation, field)
            if value is not None:
                samples[place, kind] = value / MS if metric.per == MS else value
    if sums:
        # An operation may be sent without ever being finished, but is not counted before.
        reading.add(RETRANSMISSIONS, (place,), max(0, retransmissions))
        reading.add(TIMEOUTS, (place,), timeouts)


def _add(one: Operation, other: Operation) -> Operation:
    if not other.requests:
        return one
    return Operation._make(_sum(pair) for pair in zip(one, other, strict=True))


def _transports(place: str, mount: Mount, reading: Reading) -> None:
    transports = mount.transports
    reading.add(TRANSPORTS, (place,), len(transports))
    for field, metric in TRANSPORT.items():
        value = _sum(getattr(transport, field) for transport in transports)
        if value is not None:
            reading.add(metric, (place,), value)
    idle = [transport.idle_seconds for transport in transports]
    known = [seconds for seconds in idle if seconds is not None and seconds >= 0]
    if known:
        reading.add(IDLE, (place,), min(known))


def _sum(values: Iterable[int | None]) -> int | None:
    """None if one of them is not known, or if there is none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if found and len(known) == len(found) else None
