"""`/proc/net/snmp` and `/proc/net/netstat`: for each protocol, a line of names and a line of values."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ..files import Unreadable

Columns = dict[str, int]


class Lines(NamedTuple):
    names: bytes  # the raw line: it is the same at each read, so the parsed form can be cached
    values: list[bytes]


def protocols(data: bytes) -> dict[bytes, Lines]:
    """Protocol -> its two lines. Raises Unreadable if there are none.

    If the number of values differs from the number of names, the protocol is left out, because the missing column is
    unknown.
    """
    found: dict[bytes, Lines] = {}
    lines = data.split(b"\n")
    for names, values in pairwise(lines):
        protocol, colon, _ = names.partition(b": ")
        again, _, rest = values.partition(b": ")
        if not colon or protocol != again or protocol in found:
            continue
        numbers = rest.split()
        if names.count(b" ") == len(numbers):
            found[protocol] = Lines(names, numbers)
    if not found:
        raise Unreadable("garbage" if data.strip() else "empty")
    return found


def columns(names: bytes) -> Columns:
    """Name -> its position among the values."""
    return {name.decode("ascii", "replace"): place for place, name in enumerate(names.split()[1:])}


def value(number: bytes) -> int:
    """Parses an unsigned 64-bit value. Raises Unreadable."""
    if number.isdigit() and not (result := int(number)) >> 64:
        return result
    raise Unreadable("garbage")
