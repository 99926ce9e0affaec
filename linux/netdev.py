"""`/proc/net/dev` (the counters of each network interface) and `/proc/net/route` (the default routes).

Columns: ``dev_seq_printf_stats`` of net/core/net-procfs.c. Receive drops include packets that the adapter missed. The
columns frame and carrier are sums of several kinds of errors.
"""

from __future__ import annotations

from typing import NamedTuple

from .unreadable import Unreadable

COLUMNS = 16
RX_BYTES, RX_PACKETS, RX_ERRORS, RX_DROPS, RX_FIFO, RX_FRAME = range(6)
TX_BYTES, TX_PACKETS, TX_ERRORS, TX_DROPS, TX_FIFO, TX_COLLISIONS, TX_CARRIER = range(8, 15)


class NetDev(NamedTuple):
    interfaces: dict[str, list[bytes]]  # name -> columns, converted on request: most interfaces are not reported
    bad: int  # number of lines that cannot be parsed


def interfaces(data: bytes) -> NetDev:
    """The interfaces in `/proc/net/dev`. Raises Unreadable for other content."""
    lines = data.split(b"\n")
    if len(lines) < 3 or not lines[0].startswith(b"Inter-|"):
        raise Unreadable("garbage" if data.strip() else "empty")
    found: dict[str, list[bytes]] = {}
    bad = 0
    for line in lines[2:]:
        if not line:
            continue
        # A colon ends the name, and the first number may follow without a blank.
        name, colon, rest = line.partition(b":")
        columns = rest.split()
        try:
            interface = name.strip().decode("ascii")
        except UnicodeDecodeError:
            interface = ""
        if colon and len(columns) >= COLUMNS and _is_name(interface):
            found[interface] = columns
        else:
            bad += 1
    return NetDev(found, bad)


def _is_name(name: str) -> bool:
    """Whether this is a valid name: shorter than IFNAMSIZ (16), and safe as a part of a path."""
    return 0 < len(name) < 16 and name.isprintable() and "/" not in name and name not in (".", "..")


def values(columns: list[bytes]) -> list[int]:
    """The numbers of one interface. Raises Unreadable."""
    try:
        numbers = list(map(int, columns))
    except ValueError:
        raise Unreadable("garbage") from None
    if min(numbers) < 0 or max(numbers) >> 64:
        raise Unreadable("garbage")
    return numbers


def default_routes(data: bytes) -> frozenset[str]:
    """The interfaces with a default route (destination and mask 0) in `/proc/net/route`. Invalid lines are ignored."""
    found: set[str] = set()
    for line in data.split(b"\n")[1:]:
        fields = line.split()
        if len(fields) >= 8 and fields[1] == b"00000000" and fields[7] == b"00000000":
            found.add(fields[0].decode("ascii", "replace"))
    return frozenset(found)
