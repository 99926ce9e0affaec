"""/proc/<pid>/mountstats: the counters of the NFS client per mount. Also finds the file system of mounts in mountinfo.

Format: net/sunrpc/stats.c, net/sunrpc/xprtsock.c and fs/nfs/super.c of Linux. Statistics 1.0 have 8 numbers per
operation. Statistics 1.1 (Linux 5.x) have the errors as a ninth number. Times are in ms and have 64 bits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from .unreadable import Unreadable

_PIECE = re.compile(rb"\n(?=[^\t\n])")
_HEAD = re.compile(rb"(?:no device|device (\S+)) mounted on (\S+) with fstype (\S+)(?: .*)?")
_NUMBERS = re.compile(rb"-?\d{1,20}(?: -?\d{1,20})* ?")
_OPERATION = re.compile(rb"^\t *([A-Z_0-9]+): (\d{1,20}(?: \d{1,20}){7,}) ?$", re.M)
_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")
_MOUNTINFO = re.compile(rb"\d+ \d+ (\d+:\d+) \S+ (\S+) .*? - (\S+) (\S+) (\S*)")

_PER_OPERATION = b"\n\tper-op statistics\n"


class Operation(NamedTuple):
    """Sums over all calls of one operation."""

    requests: int
    transmissions: int
    major_timeouts: int
    bytes_sent: int
    bytes_received: int
    queue_ms: int
    rtt_ms: int
    execute_ms: int
    errors: int | None  # None with statistics 1.0


class Transport(NamedTuple):
    """One connection of a mount. Values that its protocol does not count are None."""

    protocol: str
    connects: int | None
    idle_seconds: int | None
    sends: int
    receives: int
    bad_xids: int
    backlog: int  # requests without a slot, summed up at each send
    pending: int | None  # requests that wait for an answer, summed up at each send; not counted by RDMA


class Block(NamedTuple):
    """The lines of one NFS mount. They are parsed later, because many mounts show the same counters."""

    device: str  # server:/export
    mount: str
    body: bytes


@dataclass(slots=True)
class Mount:
    """The parsed lines of one NFS mount."""

    options: dict[str, str] = field(default_factory=dict)
    bytes: tuple[int, ...] = ()  # read, written; both with O_DIRECT; read from the server, written to it; ...
    transports: list[Transport] = field(default_factory=list)
    operations: dict[bytes, Operation] = field(default_factory=dict)


def split(data: bytes) -> tuple[list[Block], int]:
    """The NFS mounts, and the number of lines that belong to no mount. Raises Unreadable."""
    if not data.strip():
        raise Unreadable("empty")
    blocks: list[Block] = []
    strays = good = 0
    for piece in _PIECE.split(data.removesuffix(b"\n")):
        line, _, body = piece.partition(b"\n")
        head = _HEAD.fullmatch(line)
        if head is None:
            strays += 1
            continue
        good += 1
        if head[3] in (b"nfs", b"nfs4") and head[1]:
            blocks.append(Block(unescape(head[1]), unescape(head[2]), body))
    if not good:
        raise Unreadable("garbage")
    return blocks, strays


def parse(body: bytes) -> Mount:
    """Parses the lines of one mount. Raises Unreadable if any line is invalid."""
    head, per_operation, operations = body.partition(_PER_OPERATION)
    # A blank line ends the lines of each mount, so truncated text is recognised.
    if not per_operation or not operations.endswith(b"\n"):
        raise Unreadable("garbage")
    mount = Mount()
    for line in head.split(b"\n"):
        _take(line, mount)
    found = _OPERATION.findall(operations)
    if not mount.bytes or len(found) != operations.rstrip(b"\n").count(b"\n") + 1:
        raise Unreadable("garbage")
    mount.operations = {name: _operation(numbers) for name, numbers in found}
    return mount


def _take(line: bytes, mount: Mount) -> None:
    if line[:1] != b"\t":
        raise Unreadable("garbage")
    key, _, rest = line[1:].partition(b":")
    if key == b"opts":
        options = rest.strip().decode("ascii", "replace").split(",")
        mount.options = {name: value for name, _, value in (option.partition("=") for option in options)}
    elif key == b"bytes":
        mount.bytes = _numbers(rest.strip(), 6)
    elif key == b"xprt" and (transport := _transport(rest.strip())):
        mount.transports.append(transport)


def unescape(text: bytes) -> str:
    """Decodes blanks, tabs, newlines and backslashes, which are written in octal. Invalid UTF-8 becomes \\x escapes."""
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), text).decode("utf-8", "backslashreplace")


class SuperBlock(NamedTuple):
    """The file system of one mount, as mountinfo shows it."""

    device: str  # its number
    mount: str
    source: str
    options: str  # of the file system, separated by commas

    def option(self, name: str) -> str:
        """The value of an option such as addr=10.0.0.7; empty without it."""
        parts = (part.partition("=") for part in self.options.split(","))
        return next((value for key, _, value in parts if key == name), "")


def super_blocks(mountinfo: bytes, *kinds: str) -> list[SuperBlock]:
    """The mounts of the given types, in order. Raises Unreadable."""
    if not _MOUNTINFO.match(mountinfo):
        raise Unreadable("garbage" if mountinfo.strip() else "empty")
    wanted = [kind.encode() for kind in kinds]
    marks = [b" - %s " % kind for kind in wanted]
    found = []
    for line in mountinfo.split(b"\n"):  # there may be thousands of lines, of which a few are wanted
        if any(mark in line for mark in marks) and (match := _MOUNTINFO.match(line)) and match[3] in wanted:
            device, mount, _, source, options = match.groups()
            found.append(SuperBlock(device.decode(), *map(unescape, (mount, source, options))))
    return found


def _numbers(text: bytes, least: int) -> tuple[int, ...]:
    if not _NUMBERS.fullmatch(text) or len(numbers := tuple(map(int, text.split()))) < least:
        raise Unreadable("garbage")
    return numbers


_UNUSED = b"0 0 0 0 0 0 0 0"
_NEVER = Operation(0, 0, 0, 0, 0, 0, 0, 0, None)
_NEVER_WITHOUT_ERROR = Operation(0, 0, 0, 0, 0, 0, 0, 0, 0)


def _operation(numbers: bytes) -> Operation:
    if numbers.startswith(_UNUSED):  # most of the seventy operations of NFS 4.2
        if numbers == _UNUSED:
            return _NEVER
        if numbers == _UNUSED + b" 0":
            return _NEVER_WITHOUT_ERROR
    values = list(map(int, numbers.split()))
    return Operation._make([*values[:8], values[8] if len(values) > 8 else None])


# Positions of the numbers of a transport: connects, idle, sends, receives, bad xids, backlog, pending. None: absent.
_COLUMNS: dict[bytes, tuple[int | None, ...]] = {
    b"tcp": (2, 4, 5, 6, 7, 9, 12),
    b"tcp-tls": (2, 4, 5, 6, 7, 9, 12),
    b"rdma": (2, 4, 5, 6, 7, 9, None),
    b"local": (1, 3, 4, 5, 6, 8, 11),
    b"udp": (None, None, 2, 3, 4, 6, 9),
}


def _transport(text: bytes) -> Transport | None:
    protocol, _, rest = text.partition(b" ")
    columns = _COLUMNS.get(protocol)
    if columns is None:
        return None  # the protocol of a later kernel; the meaning of its numbers is not known
    numbers = _numbers(rest, max(column for column in columns[:-1] if column is not None) + 1)
    by_column = dict(enumerate(numbers))
    values = [None if column is None else by_column.get(column) for column in columns]
    return Transport._make([protocol.decode(), *values])
