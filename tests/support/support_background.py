"""Words of background work for ledgers in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from whyidle.ledger.background import BACKGROUND_LABELS, KINDS, PARTS, SUMS, UNIT
from whyidle.ledger.beside import Block, Comparisons
from whyidle.ledger.layout import WORD_AT
from whyidle.ledger.writer import LedgerWriter

MS = 1_000_000
QUIET: Mapping[str, float] = {}
Stretches = list[tuple[int, float]]
"""(steps, ms that each of them took longer)."""


def block(works: Mapping[str, float] = QUIET, steps: int = 10, step_ms: float = 50.0, **more_ms: float) -> Block:
    """A block of steps that compute, with more ms a step in other parts."""
    each = {"compute": step_ms} | more_ms
    parts = tuple(round(each.get(part, 0.0) * steps * MS) for part in PARTS)
    return Block(steps, sum(parts), parts, works)


@dataclass(frozen=True)
class Work:
    label: str
    stretches: Stretches = field(default_factory=list)
    part: str = "lock"
    normal_ms: float = 75.0
    """How long a step takes without it."""

    def compared(self) -> Comparisons:
        """Each stretch is a block, with one without the work before and after it."""
        found, rest = Comparisons(1), block(step_ms=self.normal_ms)
        label = self.label if self.label.split(" ")[0] in KINDS else "thread"
        for steps, ms in self.stretches:
            for each in (rest, block({label: 1.0}, steps, self.normal_ms, **{self.part: ms}), rest):
                found.add(each)
        found.end()
        return found


def put(writer: LedgerWriter, index: int, work: Work) -> None:
    """Writes what a rank has counted of a work."""
    writer.set_string(BACKGROUND_LABELS[index], work.label)
    found = work.compared()
    slope = next(iter(found.slopes.values()))
    values = ("step_ns", 0, found.step_ns), ("stretches", index, slope.stretches), ("worked_ns", index, slope.worked_ns)
    sums = (("sums", index * len(SUMS) + at, UNIT * value) for at, value in enumerate(slope.sums))
    for word, at, value in (*values, ("most", index, UNIT * slope.most), *sums):
        writer.words[WORD_AT[f"background_{word}"][0] + at] = round(value)
