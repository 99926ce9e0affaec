"""The links of a rank in its ledger: which index each has, and its words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...ledger.layout import SLOTS, WORD_AT
from ...ledger.links import LINK_LABELS, LINK_WORDS, LINKS, link_text
from .inventory import Found, Key
from .sockets import Connection, follows

if TYPE_CHECKING:
    from ..machine import PhaseMachine

_AT = {name.removeprefix("link_"): WORD_AT[name][0] for name in LINK_WORDS}
_SLOT_AT = WORD_AT["slot_link_bytes"][0]


class Table:
    """A link keeps its index, unless another one that carries transfers needs it."""

    def __init__(self, machine: PhaseMachine):
        self._machine = machine
        self._words = machine.words
        self.keys: list[Key | None] = [None] * LINKS
        self._everybody: dict[Key, int] = {}  # what anybody had moved over a link when it was last looked at

    def assign(self, best: Iterable[Key]) -> None:
        """Gives an index to each of at most LINKS links."""
        best = list(best)
        for key in best:
            if key in self.keys:
                continue
            index = next((at for at, known in enumerate(self.keys) if known is None), None)
            if index is None:
                index = next(at for at in reversed(range(LINKS)) if self.keys[at] not in best)
                self._clear(index)
            self.keys[index] = key
            self._machine.write_string(LINK_LABELS[index], link_text(*key, ""))

    def _clear(self, index: int) -> None:
        for at in (*_AT.values(), *(_SLOT_AT + slot * LINKS for slot in range(SLOTS))):
            self._words[at + index] = 0

    def describe(self, found: Found) -> None:
        """Writes what a link is."""
        if found.key not in self.keys:
            return
        index = self.keys.index(found.key)
        self._machine.write_string(LINK_LABELS[index], link_text(*found.key, found.address))
        for name, value in (
            ("up", int(found.up)),
            ("speed", found.speed),
            ("limit", found.limit),
            ("limit_by", found.limit_by),
            ("mtu", found.mtu),
        ):
            self._words[_AT[name] + index] = value

    def everybody(self, key: Key, moved_bytes: int) -> int:
        """Counts what anybody has moved over a link. Returns how much it was since the last call."""
        before = self._everybody.get(key)
        self._everybody[key] = moved_bytes
        grown = 0 if before is None else max(0, moved_bytes - before)
        self.add(key, "all", grown)
        return grown

    def add(self, key: Key, name: str, value: int) -> None:
        if value and key in self.keys:
            self._words[_AT[name] + self.keys.index(key)] += value

    def put(self, key: Key, name: str, value: int) -> None:
        if key in self.keys:
            self._words[_AT[name] + self.keys.index(key)] = value

    def at_least(self, key: Key, name: str, value: int) -> None:
        if key in self.keys:
            at = _AT[name] + self.keys.index(key)
            self._words[at] = max(self._words[at], value)

    def add_to_slot(self, slot: int, key: Key, moved_bytes: int) -> None:
        if key in self.keys:
            self._words[_SLOT_AT + slot * LINKS + self.keys.index(key)] += moved_bytes

    def connections(self, key: Key, moving: list[Connection]) -> tuple[int, int]:
        """Counts what the connections on a link have done since the last call.

        Returns the bytes of the larger direction, and how long (ns) the busiest connection was busy.
        """
        sums = [0, 0, 0, 0]  # sent, received, segments, resent
        busiest, most = (0, 0, 0), -1
        for one in moving:
            now, seen, one.seen = one.last, one.seen, one.last
            if not follows(now, seen):
                continue
            grown = [max(0, after - before) for after, before in zip(now, seen, strict=True)]
            for at in (3, 4):  # the kernel counts segments with 32 bits
                grown[at] = (now[at] - seen[at]) & 0xFFFF_FFFF
            for at in range(4):
                sums[at] += grown[at + 1]
            busiest = max(busiest, (grown[5], grown[6], grown[7]))
            if grown[1] > most:
                most = grown[1]
                self.put(key, "trip_ns", now.trip_us * 1000)
        for name, value in zip(("sent", "received", "segments", "resent"), sums, strict=True):
            self.add(key, name, value)
        for name, value in zip(("busy_ns", "window_ns", "buffer_ns"), busiest, strict=True):
            self.add(key, name, value * 1000)
        if least := [one.last.least_trip_us for one in moving if one.last.least_trip_us]:
            self.put(key, "least_trip_ns", min(least) * 1000)
        return max(sums[:2]), busiest[0] * 1000
