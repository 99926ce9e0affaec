"""Words of background work for ledgers in tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from whyidle.ledger.background import BACKGROUND_LABELS, LAST, PARTS
from whyidle.ledger.layout import WORD_AT
from whyidle.ledger.writer import LedgerWriter

MS = 1_000_000
Stretches = list[tuple[float, float, float]]
"""(steps, ms that each took longer, ms by which the steps around it differ)."""


@dataclass(frozen=True)
class Work:
    label: str
    stretches: Stretches = field(default_factory=list)
    part: str = "lock"
    normal_ms: float = 75.0
    """How long a step takes without it."""


def put(writer: LedgerWriter, index: int, work: Work) -> None:
    """Writes what a rank has counted of a work."""
    writer.set_string(BACKGROUND_LABELS[index], work.label)

    def one(word: str, at: int, value: float) -> None:
        writer.words[WORD_AT[f"background_{word}"][0] + at] = round(value)

    steps, count = 1000 * sum(each for each, _, _ in work.stretches), len(work.stretches)
    for word, value in (("stretches", count), ("compared", count), ("steps", steps), ("compared_steps", steps)):
        one(word, index, value)
    one("normal_ns", index, steps / 1000 * work.normal_ms * MS)
    excess = sum(each * ms for each, ms, _ in work.stretches)
    one("part_ns", index * len(PARTS) + PARTS.index(work.part), excess * MS)
    for number, (each, ms, drift) in enumerate(work.stretches):
        for word, value in (("steps", 1000 * each), ("excess_ns", ms * MS), ("drift_ns", drift * MS)):
            one(f"last_{word}", index * LAST + number % LAST, value)
