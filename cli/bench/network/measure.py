"""Times collectives. All ranks run this, and rank 0 reports the rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....advisor.bench.network.operations import busbw, elements
from ....advisor.bench.network.timing import Timing, plan, timing_of
from ...quantities import in_bytes
from .collectives import DTYPES, Collective, Group
from .start import BenchError, first_line
from .world import World

BLOCKS = 5
"""The number of repetitions. The result is their median."""
PROBE_BYTES = 256 << 10
"""The size that is tried before the first size of an operation, if that is larger."""
_TRIES = 3
"""The least number of calls of a size: one to connect, one to see how long it takes, and one that counts."""
_CHECKED_BYTES = 4 << 20
CHECKS: dict[str, float] = {"small": _CHECKED_BYTES, "always": math.inf, "never": -1}
"""Value of --check -> the largest size in bytes whose results are checked."""


@dataclass(frozen=True)
class Limits:
    """How long to measure, and what to check."""

    dtype: str
    size_seconds: float
    """The time for the repetitions of one size."""
    end: float
    """When rank 0 starts no further size, in seconds of its time.monotonic()."""
    checked: float
    """The largest size in bytes whose results are checked."""


class Bench:
    """Measures the world, or the groups of a job that have one label."""

    def __init__(self, world: World, label: str, group: Group, limits: Limits, say: Callable[[str, str], None]):
        self._world, self._label, self._group, self._limits, self._say = world, label, group, limits, say
        self.skipped: list[str] = []
        """The sizes for which there was no time."""

    def run(self, sizes: Mapping[str, Iterable[int]]) -> list[dict[str, Any]]:
        """Measures operations at their sizes, smallest first, and returns the rows. Raises BenchError."""
        rows: list[dict[str, Any]] = []
        for op, wanted in sizes.items():
            known: tuple[int, float] | None = None
            for size in sorted(set(wanted)):
                self._say(f"{op}, {self._label}" if self._group.handle else op, in_bytes(size))
                try:
                    known = known or self._probe(op, size)
                    if not self._has_time(known[1] * max(1.0, size / known[0])):
                        self.skipped.append(f"{op} of {in_bytes(size)}")
                        continue
                    row = self._row(op, size)
                except RuntimeError as error:
                    if not _unsupported(error):
                        raise BenchError(f"{op} of {in_bytes(size)}: {_what_happened(error)}") from error
                    rows.append({"label": self._label, "op": op, "ranks": self._group.size, "error": first_line(error)})
                    break
                known = size, row["seconds"]
                rows.append(row)
        return rows

    def _probe(self, op: str, size: int) -> tuple[int, float]:
        """Returns a small size and the seconds of one call with it."""
        size = min(size, PROBE_BYTES)
        return size, self._first(Collective(self._world, op, size, self._group, DTYPES[self._limits.dtype]))

    def _first(self, collective: Collective) -> float:
        world = self._world
        world.seconds(collective.call, 1)  # connects
        world.barrier()
        return world.largest(world.seconds(collective.call, 1))

    def _has_time(self, one_call: float) -> bool:
        left = self._limits.end - time.monotonic() if self._world.rank == 0 else -math.inf
        return self._world.largest(left) > _TRIES * one_call

    def _row(self, op: str, size: int) -> dict[str, Any]:
        world, limits, ranks = self._world, self._limits, self._group.size
        collective = Collective(world, op, size, self._group, DTYPES[limits.dtype])
        blocks, calls = plan(self._first(collective), limits.size_seconds, BLOCKS)
        mine = []
        for _ in range(blocks):
            world.barrier()
            mine.append(world.seconds(collective.call, calls))
        timing = timing_of(world.gather(mine), calls)
        right = collective.is_right(world) if collective.size <= limits.checked else None
        wrong = [rank for rank, (bad,) in enumerate(world.gather([float(right is False)])) if bad]
        return {
            "label": self._label,
            "op": op,
            "ranks": ranks,
            "size_bytes": collective.size,
            **_seconds(timing),
            "algbw_bytes_per_second": collective.size / timing.seconds,
            "busbw_bytes_per_second": busbw(op, ranks, collective.size, timing.seconds),
            "checked": right is not None,
            "wrong_ranks": wrong,
        }


def _seconds(timing: Timing) -> dict[str, Any]:
    return {
        "seconds": timing.seconds,
        "least_seconds": timing.least,
        "most_seconds": timing.most,
        "mean_rank_seconds": timing.mean,
        "slowest_rank": timing.slowest,
        "blocks": timing.blocks,
        "calls_per_block": timing.calls,
    }


def _unsupported(error: RuntimeError) -> bool:
    """Whether the backend lacks the operation, such as gloo reduce-scatter in older torch. All ranks get this error."""
    text = str(error).lower()
    return isinstance(error, NotImplementedError) or "does not support" in text or "not implemented" in text


def _what_happened(error: RuntimeError) -> str:
    text = str(error).lower()
    if "timed out" in text or "timeout" in text:
        return f"it did not end in time ({first_line(error)})"
    if "out of memory" in text:
        return f"there is not enough memory ({first_line(error)})"
    if any(word in text for word in ("closed", "reset", "broken pipe", "connection", "socket")):
        return f"another rank is gone, or cannot be reached ({first_line(error)})"
    return first_line(error)


def needed_bytes(sizes: Mapping[str, Sequence[int]], ranks: int, dtype: str, buffer: Callable[..., int]) -> int:
    """The bytes that the largest buffers of a rank need."""
    itemsize = DTYPES[dtype].itemsize
    return max(
        (
            buffer(op, elements(op, size, ranks, itemsize) * itemsize, ranks)
            for op, listed in sizes.items()
            for size in listed
        ),
        default=0,
    )
