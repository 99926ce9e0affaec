"""Compares steps beside background work with the nearest steps without it. Pure arithmetic.

The watcher divides the run into blocks of some steps. Neighbouring blocks in which something works are a *stretch*. It
is compared with blocks before and after it, together about as long as the stretch itself, and no farther away than
necessary. Their mean is what its steps would have taken: a run that becomes slower steadily makes no difference.

The whole stretch counts, with blocks in which the work begins or ends, and with one more on each side. So it does not
have to be known exactly when it begins and ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .background import KINDS, PARTS

WORKS, RESTS = 0.10, 0.03
"""A work that has at least this share of a block works in it. Below RESTS it rests. Between them, the block belongs to
a stretch beside it, and never to the steps without it."""
ALWAYS = 0.8
"""A work that works in more than this share of the time is there always: there is nothing to compare it with. So it
does not count beside the others. This is known after _KNOWN_NS."""
_KNOWN_NS = 20_000_000_000
MOST = 0.5
"""A stretch is named after a work that works in at least this part of it."""
_SHORTEST_NS, _LONGEST_NS = 2_000_000_000, 30_000_000_000
"""How long the steps before a stretch, and those after it, are at least and at most."""
_MOST_BLOCKS = 4096
_LEVEL = {"save": 0, "process": 0, "thread": 0, "disk": 1, "link": 2, "neighbour": 3}
"""Kind -> in which order works are looked for in a block."""


class Block(NamedTuple):
    """Some steps in a row."""

    steps: int
    ns: int
    """How long they took, with what is not compared: saves, evaluations, compilation."""
    parts: tuple[int, ...]
    """ns by PARTS."""
    works: Mapping[str, float]
    """Label of a work -> the share of the block in which it worked."""


class Stretch(NamedTuple):
    """What a stretch of work has cost."""

    label: str
    steps: float
    """The steps beside it."""
    normal_ns: float
    """How long these would have taken without it."""
    excess_ns: tuple[float, ...] | None
    """How much longer they took, by PARTS; None if there are no steps to compare them with."""
    drift_ns: float
    """How much longer a step took after it than before it."""


@dataclass
class Pairings:
    """Finds the stretches in blocks that come one after the other.

    What the rank itself does, the disks, the links and the neighbours are compared separately: a neighbour may be there
    at any time, also beside a save. A block in which one of them works is not used for those that follow it.
    """

    _total_ns: int = 0
    _works_ns: dict[str, int] = field(default_factory=dict)
    _levels: dict[int, Pairing] = field(
        default_factory=lambda: {level: Pairing() for level in sorted(set(_LEVEL.values()))}
    )

    def add(self, block: Block) -> list[Stretch]:
        """The stretches that can be compared now."""
        self._total_ns += block.ns
        for label, share in block.works.items():
            if share >= WORKS:
                self._works_ns[label] = self._works_ns.get(label, 0) + block.ns
        works = {label: share for label, share in block.works.items() if share >= RESTS and not self._always(label)}
        found: list[Stretch] = []
        for level, pairing in self._levels.items():
            mine = {label: share for label, share in works.items() if _level_of(label) == level}
            found += pairing.add(block._replace(works=mine))
            if mine:
                break
        return found

    def finish(self) -> list[Stretch]:
        """Ends the open stretches with the steps after them that there are."""
        return [stretch for pairing in self._levels.values() for stretch in pairing.finish()]

    def _always(self, label: str) -> bool:
        return self._total_ns >= _KNOWN_NS and self._works_ns.get(label, 0) > ALWAYS * self._total_ns


@dataclass
class Pairing:
    """The same, for works that are not told apart from one another while they work at the same time."""

    _before: deque[Block] = field(default_factory=lambda: deque(maxlen=_MOST_BLOCKS))
    _open: list[Block] = field(default_factory=list)
    _after: list[Block] = field(default_factory=list)

    def add(self, block: Block) -> list[Stretch]:
        if block.works:
            found = self.finish() if self._after else []
            if not self._open and len(self._before) > 1:
                self._open.append(self._before.pop())
            self._open.append(block)
            if len(self._open) >= _MOST_BLOCKS:
                self._open.clear()
            return found
        if not self._open:
            self._keep([block])
            return []
        self._after.append(block)
        return self.finish() if len(self._after) > 1 and _length(self._after[1:]) >= _enough(self._open) else []

    def finish(self) -> list[Stretch]:
        opened, after = self._open, self._after
        self._open, self._after = [], []
        if opened and len(after) > 1:
            opened.append(after.pop(0))
        label = _name(opened)
        found = [] if label is None else [_compare(label, opened, list(self._before), after)]
        self._keep(after)
        return found

    def _keep(self, blocks: Sequence[Block]) -> None:
        self._before.extend(blocks)
        while len(self._before) > 1 and _length(self._before) - self._before[0].ns >= _LONGEST_NS:
            self._before.popleft()


def _level_of(label: str) -> int:
    return _LEVEL[label.split(" ", 1)[0]]


def _length(blocks: Sequence[Block] | deque[Block]) -> int:
    return sum([block.ns for block in blocks])


def _enough(opened: Sequence[Block]) -> int:
    return min(max(_length(opened) // 2, _SHORTEST_NS), _LONGEST_NS)


def _name(opened: Sequence[Block]) -> str | None:
    """The work after which a stretch is named; None if nothing really works in it."""
    shares: dict[str, int] = {}
    for block in opened:
        for label, share in block.works.items():
            shares[label] = shares.get(label, 0) + (block.ns if share >= WORKS else 0)
    whole = max(shares.values(), default=0)
    found = [label for label, ns in shares.items() if ns and ns >= MOST * whole]
    return min(found, key=lambda label: (KINDS.index(label.split(" ", 1)[0]), -shares[label]), default=None)


def _compare(label: str, opened: Sequence[Block], before: Sequence[Block], after: Sequence[Block]) -> Stretch:
    steps = _beside(label, opened)
    enough = _enough(opened)
    early, late = _mean(_nearest(before[::-1], enough)), _mean(_nearest(after, enough))
    if early is None or late is None:
        return Stretch(label, steps, 0.0, None, 0.0)
    usual = [(one + other) / 2 for one, other in zip(early, late, strict=True)]
    count = sum(block.steps for block in opened)
    excess = [sum(block.parts[at] for block in opened) - count * usual[at] for at in range(len(PARTS))]
    return Stretch(label, steps, steps * sum(usual), tuple(excess), sum(late) - sum(early))


def _beside(label: str, opened: Sequence[Block]) -> float:
    """The steps of a stretch, less those of its ends in which the work has not begun or has ended."""
    shares = [block.works.get(label, 0.0) for block in opened]
    inside = [share for share in shares[2:-2] if share >= WORKS]  # without the ends, and the blocks around them
    usual = sorted(inside)[len(inside) // 2] if inside else max(shares)
    return sum(block.steps * min(1.0, share / usual) for block, share in zip(opened, shares, strict=True))


def _nearest(blocks: Sequence[Block], enough: int) -> list[Block]:
    found: list[Block] = []
    length = 0
    for block in blocks:
        if length >= enough:
            break
        found.append(block)
        length += block.ns
    return found


def _mean(blocks: Sequence[Block]) -> list[float] | None:
    """ns of a step, by PARTS."""
    steps = sum(block.steps for block in blocks)
    return [sum(block.parts[at] for block in blocks) / steps for at in range(len(PARTS))] if steps else None
