"""Lists of CPUs, as the kernel writes them (https://docs.kernel.org/admin-guide/kernel-parameters.html)."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PART = re.compile(r"(\d+)(?:-(\d*)(?::(\d+)/([1-9]\d*))?)?", re.ASCII)


def cpus_in(text: str) -> frozenset[int]:
    """The CPUs of a list such as `0-3,8` or `0-62:1/2`. What was cut off is missing; an invalid part is left out."""
    found: set[int] = set()
    for part in text.split(","):
        if (known := _PART.fullmatch(part)) is None:
            continue
        first, last, used, group = (
            int(number or default) for number, default in zip(known.groups(), (0, 0, 1, 1), strict=True)
        )
        last = max(first, last)
        if last - first < 1 << 12 and used <= group:
            found.update(cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)
    return frozenset(found)


def listed(cpus: Iterable[int]) -> str:
    """CPUs as in /proc: `0-3,8`."""
    found: list[list[int]] = []
    for cpu in sorted(cpus):
        if found and cpu == found[-1][1] + 1:
            found[-1][1] = cpu
        else:
            found.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
