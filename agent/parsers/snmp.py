"""`/proc/net/snmp` and `/proc/net/netstat`: per protocol a line of names, then a line of values."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ..files import Unreadable

Columns = dict[str, int]


class Lines(NamedTuple):
    names: bytes  # as it stands: the same at each read, so that what is made of it can be kept
    values: list[bytes]


def protocols(data: bytes) -> dict[bytes, Lines]:
    """Protocol -> its two lines. Raises Unreadable if there are none.

    A line of values that does not fit its names is left out with them: no telling which column it lost.
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
    """Name -> its place among the values."""
    return {name.decode("ascii", "replace"): place for place, name in enumerate(names.split()[1:])}


def value(number: bytes) -> int:
    """Raises Unreadable."""
    if number.isdigit() and not (result := int(number)) >> 64:
        return result
    raise Unreadable("garbage")
