"""Pressure stall information: /proc/pressure/* and a cgroup's *.pressure.

Format: https://docs.kernel.org/accounting/psi.html
"""

from __future__ import annotations

import re

from ..files import Unreadable

_LINE = re.compile(rb"(some|full) avg10=[\d.]+ avg60=[\d.]+ avg300=[\d.]+ total=(\d{1,20})")


def parse(data: bytes) -> dict[str, int]:
    """How many µs `some` tasks and all (`full`) tasks were stalled. Either key may be missing. Raises Unreadable."""
    if not data.strip():
        raise Unreadable("empty")
    found: dict[str, int] = {}
    for line in data.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise Unreadable("garbage")
        found[match[1].decode()] = int(match[2])
    return found
