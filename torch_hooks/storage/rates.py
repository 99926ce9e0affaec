"""How much a mount moves while looks find somebody blocked there, in all and by the number of readers.

Readers also go to other mounts between two looks. Where a look may read the counters of all mounts, it does so while
anybody is blocked at any of them, and counts half of the time before and after it for the mounts at which somebody is
blocked. Looks have random times, so the sums are right although each part is not.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ledger.layout import WORD_AT
from ...ledger.mounts import MOUNT_WORDS, SIDES
from .counters import Counted, Counter
from .limits import limit_of
from .mounts import Used
from .readers import Reader

AT = {name.removeprefix("mount_"): WORD_AT[name][0] for name in MOUNT_WORDS}
"""The index of the first word."""
GAP_NS = 2_000_000_000
"""Two looks that are further apart may be of two waits, with other work between them."""
_LIMIT_AGAIN_NS = 300_000_000_000


@dataclass(slots=True)
class _Last:
    """The last look, if it found somebody blocked at the mount."""

    at_ns: int
    kind: int
    waited_ns: int | None
    readers: int
    counted: Counted | None
    moved: dict[Reader, int]
    writes: bool
    pending_ns: int = 0
    """The time before it in which no byte came: a process counts the bytes of a call when it returns."""
    mixed: bool = False
    """Whether the number of readers changed in that time."""


class Rate:
    """The rate of one mount."""

    def __init__(self, words: memoryview[int], used: Used):
        self._words = words
        self._index = used.index
        self._device = used.mount.device
        self._counter = Counter(used.mount)
        self._last: _Last | None = None
        self._limit_due = self._side = 0
        self._limits: dict[bool, tuple[int, int]] = {}

    def nobody(self) -> None:
        """A look found nobody blocked at any mount."""
        self._last = None

    def look(
        self,
        now: int,
        kind: int,
        waited_ns: int | None,
        blocked: list[Reader],
        looked: list[Reader],
        *,
        writes: bool = False,
        syncs: bool = False,
    ) -> None:
        """A look found these readers blocked there, of those that it ``looked`` at. At least one is blocked at a mount.

        ``waited_ns``: how long the loop has waited in this ``kind`` of wait, cumulative. None if others read or write
        for it: they go on while it does not wait. Two looks are compared if they know the same.
        ``syncs``: they wait until a disk has what they have written, whose bytes count already.
        """
        if not blocked and not self._counter.cheap:
            self._last = None
            return
        if blocked:
            self._limit(now)
        if not self._counter.due(now):
            return
        counted = self._counter.read()
        moved = {} if counted else {reader: moved for reader in looked if (moved := reader.moved(writes)) is not None}
        before, self._last = self._last, _Last(now, kind, waited_ns, len(blocked), counted, moved, writes)
        if before is None or now - before.at_ns > GAP_NS or before.kind != kind:
            return
        if (
            counted is None and blocked and before.readers and before.writes != writes
        ):  # what a process reads and writes is counted apart
            return
        spent = now - before.at_ns
        if waited_ns is not None and before.waited_ns is not None:
            spent = min(spent, waited_ns - before.waited_ns)
        elif waited_ns != before.waited_ns:
            return
        if spent <= 0:  # the time of an open wait is an estimate
            return
        if counted is not None and before.counted is not None:
            grown = [max(0, new - old) for new, old in zip(counted, before.counted, strict=True)]
            for name, number in zip(Counted._fields, grown, strict=True):
                self._add(name, number)
            size = grown[0]
        else:
            size = sum(max(0, new - before.moved[reader]) for reader, new in moved.items() if reader in before.moved)
            self._add("bytes", size)
        self._set("counted", "counted", *[int(counted is not None and self._counter.exact)] * 2)
        spent = spent * ((before.readers > 0) + bool(blocked)) // 2
        mixed = bool(before.readers and blocked) and before.readers != len(blocked)
        if counted is None:
            spent, mixed = spent + before.pending_ns, mixed or before.mixed
            if not size and not syncs:
                self._last.pending_ns, self._last.mixed = spent, mixed
                return
        self._add("measured_ns", spent)
        if mixed:
            return
        self._side = min(len(blocked) or before.readers, SIDES) or self._side
        if self._side:
            side = self._index * SIDES + self._side - 1
            self._words[AT["beside_bytes"] + side] += size
            self._words[AT["beside_ns"] + side] += spent

    def _limit(self, now: int) -> None:
        """The limit of what most looks found: a mount may have one for reads, and another for writes."""
        if now >= self._limit_due:
            self._limit_due = now + _LIMIT_AGAIN_NS
            self._limits.clear()
        looks, *wrote = (self._words[AT[name] + self._index] for name in ("looks", "write_looks", "sync_looks"))
        mostly = 2 * sum(wrote) > looks
        if mostly not in self._limits:
            self._limits[mostly] = limit_of(self._device, writes=mostly)
        self._set("limit", "limit_by", *self._limits[mostly])

    def _add(self, name: str, number: int) -> None:
        self._words[AT[name] + self._index] += number

    def _set(self, first: str, second: str, one: int, two: int) -> None:
        self._words[AT[first] + self._index], self._words[AT[second] + self._index] = one, two
