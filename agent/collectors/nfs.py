"""The collector `nfs`: the counters of the NFS client, per mount. It never sends a request to a server."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ...linux.mountstats import Block, Mount, Operation, SuperBlock, parse, split, super_blocks
from ..collector import Options
from ..files import KeptFiles, Unreadable
from ..kernel.routes import Routes
from ..metrics.nfs import BYTES, IDLE, INFO, MS, OPERATIONS, RETRANSMISSIONS, TIMEOUTS, TRANSPORT, TRANSPORTS
from ..reading import Absent, Reading

MOST_MOUNTS = 32
MOUNTSTATS_BYTES = 16 << 20
"""The limit for mountstats, which has about 4 kB per mount of NFS 4.2 and one mount per pod and volume."""
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
"""Operation -> its label. All others are `other`. NFS 3 has no open and no close."""
_OF_NODE = "1"
_OWN = "self"


def create(options: Options) -> NfsCollector:
    return NfsCollector(options.roots.procfs)


class NfsCollector:
    """Reads the mounts of process 1 of the given procfs, which are the node's. Otherwise the agent's own mounts."""

    def __init__(self, procfs: str):
        self._procfs = procfs
        self._files = KeptFiles()
        self._routes = Routes(procfs)

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
        for block, found in self._distinct(blocks, whose, reading):
            try:
                mount = parse(block.body)
            except Unreadable as error:
                reading.error(block.mount, file, error.reason)
                continue
            adapter = self._routes.interface_to(_address(block, found), reading)
            _info(block, mount.options, found.device if found else "", adapter, reading)
            _bytes(block.mount, mount, reading)
            _operations(block.mount, mount, reading)
            _transports(block.mount, mount, reading)

    def _read(self, reading: Reading) -> tuple[str, bytes | None]:
        """Reads mountstats of process 1 or, without permission for that (only root has it), of the agent.

        Returns "1" or "self", and the content. Returns ("", None) if neither can be read.
        """
        for whose in (_OF_NODE, _OWN):
            try:
                data = self._files.text(f"{self._procfs}/{whose}/mountstats", MOUNTSTATS_BYTES)
            except Unreadable as error:
                hidden = error.reason == "missing" and not os.path.exists(f"{self._procfs}/{whose}")  # hidepid=2
                if whose == _OWN or not (hidden or error.reason == "denied"):
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
        """Whether the agent has the mount namespace of process 1: the id of the root mount is unique on a node."""
        try:
            own, node = (self._files.text(f"{self._procfs}/{whose}/mountinfo") for whose in (_OWN, _OF_NODE))
        except Unreadable:
            return False
        return own.split(b" ", 1)[0] == node.split(b" ", 1)[0]

    def _distinct(self, blocks: list[Block], whose: str, reading: Reading) -> list[tuple[Block, SuperBlock | None]]:
        """One mount per file system, and what mountinfo shows of it.

        Kubernetes mounts a volume into every pod that uses it, and all these mounts have the same counters.
        """
        file = f"{whose}/mountinfo"
        try:
            rows = super_blocks(self._files.text(f"{self._procfs}/{file}"), "nfs", "nfs4")
            if not rows:  # mountstats has NFS mounts, so mountinfo must have some too
                raise Unreadable("garbage")
        except Unreadable as error:
            reading.error("", file, error.reason)
            rows = []
        # If several mounts have the same mount point, only the last is visible.
        of_mount = {row.mount: row for row in rows}
        by_place = {block.mount: block for block in blocks}
        distinct: dict[str, tuple[Block, SuperBlock | None]] = {}
        for place, block in by_place.items():
            found = of_mount.get(place)
            distinct.setdefault(found.device if found else place, (block, found))
        if len(distinct) > MOST_MOUNTS:
            reading.blind(
                "some of the NFS mounts",
                f"only the first {MOST_MOUNTS} are read",
                "unmount file systems that are not used",
            )
        return list(distinct.values())[:MOST_MOUNTS]


def _address(block: Block, found: SuperBlock | None) -> str:
    """The address of the server. Older kernels do not show it, and then the server's name may be an address."""
    named = block.device.partition(":/")[0].strip("[]")  # an IPv6 address is in brackets
    return (found.option("addr") if found else "") or named


def _info(block: Block, options: dict[str, str], device: str, adapter: str, reading: Reading) -> None:
    server, slash, export = block.device.partition(":/")
    labels = (server, slash[1:] + export, options.get("vers", ""), options.get("proto", ""), device, adapter)
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
        # Operations that have been sent but have not finished are not counted yet.
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
    """The sum, or None if there are no values or one of them is not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if found and len(known) == len(found) else None
