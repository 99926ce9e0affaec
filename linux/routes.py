"""Which interface the kernel sends through: /proc/net/route and /proc/net/ipv6_route, the main routing table.

Formats: net/ipv4/fib_trie.c (fib_route_seq_show) and net/ipv6/route.c (rt6_info_route) of Linux. Rules for single
sources (`ip rule`) are not in them.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from typing import NamedTuple

_REJECT = 0x200  # RTF_REJECT
_BITS = {socket.AF_INET: 32, socket.AF_INET6: 128}


class Route(NamedTuple):
    family: int
    network: int
    """The first bits of the addresses; the others are 0."""
    bits: int
    metric: int
    interface: str


def ipv4(data: bytes) -> list[Route]:
    """The routes of /proc/net/route. Invalid lines are left out."""
    found = []
    for line in data.split(b"\n")[1:]:
        fields = line.split()
        try:
            name, (network, flags, metric, mask) = fields[0], _numbers(fields, (1, 16), (3, 16), (6, 10), (7, 16))
            parts = [number.to_bytes(4, sys.byteorder) for number in (network, mask)]
        except (IndexError, ValueError, OverflowError):
            continue
        if not flags & _REJECT:
            address, bits = int.from_bytes(parts[0], "big"), int.from_bytes(parts[1], "big").bit_count()
            found.append(Route(socket.AF_INET, address, bits, metric, name.decode("ascii", "replace")))
    return found


def ipv6(data: bytes) -> list[Route]:
    """The routes of /proc/net/ipv6_route. Invalid lines are left out."""
    found = []
    for line in data.split(b"\n"):
        fields = line.split()
        try:
            name, (network, bits, metric, flags) = fields[9], _numbers(fields, (0, 16), (1, 16), (5, 16), (8, 16))
        except (IndexError, ValueError):
            continue
        if not flags & _REJECT and bits <= _BITS[socket.AF_INET6]:
            found.append(Route(socket.AF_INET6, network, bits, metric, name.decode("ascii", "replace")))
    return found


def _numbers(fields: list[bytes], *wanted: tuple[int, int]) -> list[int]:
    return [int(fields[at], base) for at, base in wanted]


def interface_to(address: str, routes: Iterable[Route]) -> str:
    """The interface of the longest route to an address, and of these the one with the least metric. Empty if there is
    none, or if this is not an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        number = int.from_bytes(socket.inet_pton(family, address), "big")
    except (OSError, ValueError):
        return ""
    best: Route | None = None
    for route in routes:
        if route.family != family or (number ^ route.network) >> (_BITS[family] - route.bits):
            continue
        if best is None or (route.bits, -route.metric) > (best.bits, -best.metric):
            best = route
    return best.interface if best else ""
