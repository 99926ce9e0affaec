"""Compares steps beside background work with the nearest steps without it. Pure arithmetic.

The watcher divides the run into blocks of some steps. A work may begin and end anywhere in a block. In a block of which
it takes the part x, the rate of steps is `(1 - x) r0 + x r1`, and so is each part of the time that a step has: a line
in x. Its slope is found from what neighbouring stretches differ by (first differences, weighted least squares). So a
run that becomes slower steadily makes no difference, and nobody has to know exactly when a work begins. A stretch is
all blocks in a row with about the same x: some works, such as saves, cost most when they begin and end. Rates, and not
times, because a step that a collection of garbage has stopped for long changes a rate by one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .background import KINDS, PARTS, SUMS

WORKS, RESTS = 0.10, 0.03
"""A work is known from a block on of which it has at least this part, and has begun again after one with less than
RESTS. Blocks in which another work has more than RESTS say nothing about it."""
ALWAYS = 0.8
"""A work that works in more than this share of the time is there always: there is nothing to compare it with. So it
does not count beside the others. This is known after _KNOWN_NS. A work that has begun again, or one on the node, is
there always only if its mean share is also more than this part of its largest one."""
_KNOWN_NS = 20_000_000_000
_AGAIN = 0.5
"""What works on the node begins again after a block of which it has less than this part of its largest share. Blocks
may be longer than a transfer over a link and the rest after it, and then it has a share of all of them."""
_ALIKE = 0.25
"""A stretch goes on while the part x of a block differs by at most this from the mean of the stretch."""
_REST_SECONDS = 10.0
"""A stretch without the work is cut when it is longer: what is compared should be near."""
_COMPARED = 0.2
"""A block with less of usual steps is mostly a save or an evaluation, and is not compared."""
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
    only: str = ""
    """The label of the only work that it says something about; empty: about all."""


class _Rates(NamedTuple):
    seconds: float
    work: float
    values: tuple[float, ...]
    """Steps, in the unit of the run, and ns of each part: per ns."""


@dataclass
class Slope:
    """The sums of one work, by SUMS. x is the part of a block in which it works, and v the weight of a pair of blocks:

    `squares` = Σ v dx², `level` = Σ v dx² x; for the rate, and for each part, `change` = Σ v dx dy and
    `level` = Σ v dx² y. Then the slope is change / squares. For its error (HAC, with the next pair: Newey and West,
    A Simple, Positive Semi-Definite, Heteroskedasticity and Autocorrelation Consistent Covariance Matrix, 1987), with
    a = v dx dy of the rate and b = v dx²: Σ a², Σ a b, Σ b², and the same of a pair and the next one.
    """

    sums: list[float] = field(default_factory=lambda: [0.0] * len(SUMS))
    stretches: int = 0
    worked_ns: float = 0.0
    most: float = 0.0
    _before: tuple[float, float] = (0.0, 0.0)
    _old: _Rates | None = None
    _now: _Rates | None = None
    _until_ns: int = 0

    def add(self, block: _Rates, begun_ns: int) -> None:
        """The next block that says something about the work. ``begun_ns``: when it began, from the run's beginning."""
        if begun_ns - self._until_ns > 1e9 * _REST_SECONDS:
            self.end()
            self._old = None
        self._until_ns = begun_ns + round(1e9 * block.seconds)
        now = self._now
        if now is None:
            self._now = block
        elif (
            abs(block.work - now.work) <= _ALIKE
            and (block.work >= WORKS) == (now.work >= WORKS)
            and (now.work >= WORKS or now.seconds < _REST_SECONDS)
        ):
            self._now = _together(now, block)
        else:
            self.end()
            self._now = block

    def end(self) -> None:
        """The stretch is over."""
        if self._old is not None and self._now is not None:
            self._compare(self._old, self._now)
        self._old, self._now = self._now or self._old, None

    def _compare(self, old: _Rates, new: _Rates) -> None:
        dx, x = new.work - old.work, (new.work + old.work) / 2
        v = 1 / (1 / old.seconds + 1 / new.seconds)
        b = v * dx * dx
        changes = [v * dx * (one - other) for one, other in zip(new.values, old.values, strict=True)]
        levels = [b * (one + other) / 2 for one, other in zip(new.values, old.values, strict=True)]
        a, (a0, b0) = changes[0], self._before
        more = (
            *(b, b * x, changes[0], levels[0], *changes[1:], *levels[1:]),
            *(a * a, a * b, b * b, a * a0, a * b0 + b * a0, b * b0),
        )
        self.sums = [one + other for one, other in zip(self.sums, more, strict=True)]
        self._before = a, b


class Comparisons:
    """Takes the blocks of a run one after the other, and finds the slope of each work.

    What the rank itself does, the disks, the links and the neighbours are compared separately: a neighbour may be there
    at any time, also beside a save. If several work in a block, the first in the order of KINDS is compared.
    """

    def __init__(self, most: int):
        """``most``: how many works are told apart."""
        self._most = most
        self._total_ns = 0
        self._works_ns: dict[str, int] = {}
        self._share_ns: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._usual: set[str] = set()
        """What works on the node in nearly all blocks. It hides nothing."""
        self._last: Block | None = None
        self._resting: set[str] = set()
        self.step_ns = 0
        """The unit of rates: the time of a step in the first block."""
        self.slopes: dict[str, Slope] = {}

    def add(self, block: Block) -> None:
        spent, before = sum(block.parts), self._last
        self._total_ns += block.ns
        for label, share in block.works.items():
            if share >= WORKS:
                self._works_ns[label] = self._works_ns.get(label, 0) + block.ns
                self._share_ns[label] = self._share_ns.get(label, 0.0) + share * block.ns
                self._largest[label] = max(self._largest.get(label, 0.0), share)
        if not block.steps or spent < _COMPARED * block.ns or spent <= 0:
            return
        self._last = block = block._replace(works=_compared(block, spent))
        self.step_ns = self.step_ns or max(1, spent // block.steps)
        always = {label for label in self._works_ns if self._always(label)}
        self._usual = {label for label in self._works_ns if _level_of(label) and self._is_usual(label)}
        block = block._replace(works=_without(always, block.works))
        if before is not None:
            before = before._replace(works=_without(always, before.works))
        self._note(block, before, spent)
        self._resting -= always  # not known of them
        for label, slope in self.slopes.items():
            if label not in always and self._tells(label, block):
                slope.add(_rates(label, block, self.step_ns), self._total_ns - block.ns)

    def end(self) -> None:
        """The run is over: what goes on counts up to here."""
        for slope in self.slopes.values():
            slope.end()

    def works(self, shares: Mapping[str, float]) -> bool:
        """Whether something works that can be compared."""
        return any(share >= WORKS and not self._always(label) for label, share in shares.items())

    def _note(self, block: Block, before: Block | None, spent: int) -> None:
        """What works in a block."""
        for label, share in block.works.items():
            known = label in self.slopes or len(self.slopes) >= self._most
            if share >= WORKS and not known and self._tells(label, block):
                self.slopes[label] = Slope()
                # What works on the node was perhaps not known yet.
                if (
                    before is not None
                    and self._tells(label, before)
                    and (label in before.works or not _level_of(label))
                ):
                    self.slopes[label].add(_rates(label, before, self.step_ns), self._total_ns - block.ns - before.ns)
                self._resting.add(label)
        for label, slope in self.slopes.items():
            share = block.works.get(label, 0.0)
            rests = max(RESTS, _AGAIN * slope.most if _level_of(label) else 0.0)
            if share < rests and block.only in ("", label):
                self._resting.add(label)
            if share >= RESTS and self._tells(label, block):
                slope.worked_ns += share * spent
                slope.most = max(slope.most, share)
                if share >= max(WORKS, rests) and label in self._resting:
                    self._resting.discard(label)
                    slope.stretches += 1

    def _always(self, label: str) -> bool:
        if not self._is_usual(label):
            return False
        # Blocks may be longer than a burst of work and the rest after it. Then it works in each, for a part of it.
        if not _level_of(label) and (label not in self.slopes or self.slopes[label].stretches < 2):
            return True
        return self._share_ns[label] > ALWAYS * self._largest[label] * self._total_ns

    def _is_usual(self, label: str) -> bool:
        return self._total_ns >= _KNOWN_NS and self._works_ns.get(label, 0) > ALWAYS * self._total_ns

    def _tells(self, label: str, block: Block) -> bool:
        """Whether a block says something about a work: nothing that comes before it works there, too."""
        if block.only:
            return label == block.only
        level = _level_of(label)
        others = [each for each, share in block.works.items() if share >= RESTS and each not in self._usual | {label}]
        own = block.works.get(label, 0.0) >= RESTS
        return all(
            _level_of(each) > level or (own and _level_of(each) == level and _order(label, block) < _order(each, block))
            for each in others
        )


def _compared(block: Block, spent: int) -> dict[str, float]:
    """The works of a block as shares of what is compared. What is not, beside a save, is the call that begins it."""
    call = block.ns - spent
    return {
        label: max(0.0, share * block.ns - call) / spent if label.split(" ", 1)[0] == "save" else share
        for label, share in block.works.items()
    }


def _without(labels: set[str], works: Mapping[str, float]) -> Mapping[str, float]:
    return {label: share for label, share in works.items() if label not in labels} if labels else works


def _level_of(label: str) -> int:
    return _LEVEL[label.split(" ", 1)[0]]


def _order(label: str, block: Block) -> tuple[int, float, str]:
    return KINDS.index(label.split(" ", 1)[0]), -block.works[label], label


def _rates(label: str, block: Block, step_ns: int) -> _Rates:
    spent = sum(block.parts)
    values: Sequence[float] = (block.steps * step_ns, *block.parts)
    return _Rates(spent / 1e9, block.works.get(label, 0.0), tuple(value / spent for value in values))


def _together(one: _Rates, other: _Rates) -> _Rates:
    seconds = one.seconds + other.seconds
    part = other.seconds / seconds
    values = tuple(a + part * (b - a) for a, b in zip(one.values, other.values, strict=True))
    return _Rates(seconds, one.work + part * (other.work - one.work), values)


assert len(SUMS) == 2 + 2 * (1 + len(PARTS)) + 6
