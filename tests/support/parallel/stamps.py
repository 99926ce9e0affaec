"""What a rank records about itself: intervals of CLOCK_MONOTONIC, kept in memory and written once, at the end.

All ranks are on one machine, so records of different ranks can be compared. Nothing here uses whyidle.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CABLE = "slow0"


class Stamps:
    """The intervals of one rank: steps, reads, compute sections, and calls that the script makes itself."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.step = -1
        self._entries: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def interval(self, what: str, **known: Any) -> Iterator[dict[str, Any]]:
        """Records start, end and the CPU time of this thread in between, all in ns."""
        entry: dict[str, Any] = {"what": what, "step": self.step, **known}
        cpu, entry["start"] = time.thread_time_ns(), time.monotonic_ns()
        try:
            yield entry
        finally:
            entry["end"] = time.monotonic_ns()
            entry["cpu"] = time.thread_time_ns() - cpu
            self._entries.append(entry)

    def call(self, op: str, group: list[int], start: int) -> None:
        """Records a call that began at a known time, and ends now."""
        self._entries.append(
            {"what": "call", "step": self.step, "op": op, "group": group, "start": start, "end": time.monotonic_ns()}
        )

    def note(self, what: str, **known: Any) -> None:
        self._entries.append({"what": what, "step": self.step, "at": time.monotonic_ns(), **known})

    def write(self, path: Path) -> None:
        path.write_text("".join(f"{json.dumps(entry)}\n" for entry in self._entries))


def cable_bytes() -> int:
    """Bytes that this rank has sent over the slow cable, by its interface's counter. 0 without such a cable."""
    with open("/proc/self/net/dev") as file:
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == CABLE:
                return int(numbers.split()[8])
    return 0
