"""/proc/meminfo and /proc/vmstat: a name and a number per line. Only a few of hundreds of lines are parsed."""

from __future__ import annotations

from collections.abc import Iterable

from ..files import Unreadable


def meminfo(data: bytes, names: Iterable[bytes]) -> tuple[dict[bytes, int], list[bytes]]:
    """Name -> kB, and the names whose line is invalid. Names without a line are in neither. Raises Unreadable."""
    return _find(data, names, b": ", b" kB")


def vmstat(data: bytes, names: Iterable[bytes]) -> tuple[dict[bytes, int], list[bytes]]:
    """Name -> count, and the names whose line is invalid. Names without a line are in neither. Raises Unreadable."""
    return _find(data, names, b" ", b"")


def _find(data: bytes, names: Iterable[bytes], between: bytes, unit: bytes) -> tuple[dict[bytes, int], list[bytes]]:
    if not data.strip():
        raise Unreadable("empty")
    data = b"\n" + data
    found: dict[bytes, int] = {}
    bad: list[bytes] = []
    for name in names:
        head = b"\n" + name + between
        start = data.find(head)
        if start < 0:
            continue
        text = data[start + len(head) : data.find(b"\n", start + 1)]
        value = text.removesuffix(unit).strip(b" ")
        if value.isdigit() and len(value) <= 20 and text.endswith(unit):
            found[name] = int(value)
        else:
            bad.append(name)
    if not found:
        raise Unreadable("garbage")
    return found, bad
