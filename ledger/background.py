"""Background work: its words and strings in the ledger.

An asynchronous save, a thread, another process, or a neighbour on the node works for a while. The watcher compares the
steps beside it with the nearest steps without it (`beside.py`), and keeps sums here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BACKGROUNDS = 6
"""How many works a ledger tells apart: those seen first."""
BACKGROUND_LABELS: tuple[str, ...] = tuple(f"background{index}" for index in range(BACKGROUNDS))
"""The strings `KIND NAME`. The string of an unused work is empty."""
KINDS: tuple[str, ...] = ("save", "process", "thread", "disk", "link", "neighbour")
"""What works, in the order in which a block is named if several work in it.

`save`: a save behind the loop, with the NAME `process` if another process writes it. `process`: a child of the rank,
except data workers. `thread`: a Python thread of the rank. `disk`: writes on a disk at which the loop was blocked.
`link`: bytes on a link of the rank's transfers that are not its own. `neighbour`: CPU time that is not the job's.
"""

PARTS: tuple[str, ...] = ("lock", "queue", "compute", "storage", "data", "waits", "host")
"""The parts of a step's time that are compared.

`lock`: waits for Python's lock. `queue`: the training thread was runnable without a CPU. `compute`, `storage` (the wait
for a batch whose worker was blocked), `data` (all other waits for batches), `waits` for other ranks. `host`: the rest.
"""

SUMS: tuple[str, ...] = (
    *("squares", "level"),
    *("rate_change", "rate_level"),
    *(f"{part}_change" for part in PARTS),
    *(f"{part}_level" for part in PARTS),
    *("noise", "noise_slope", "noise_square", "next_noise", "next_slope", "next_square"),
)
"""Sums over pairs of neighbouring blocks of steps: see `beside.Slope`."""
UNIT = 1_000_000
"""The ledger has the sums in millionths."""

BACKGROUND_WORDS: dict[str, int] = {
    "background_step_ns": 1,  # the unit of rates: how long a step took at first
    "background_stretches": BACKGROUNDS,  # how often it began to work
    "background_worked_ns": BACKGROUNDS,  # for how long it has worked, as parts of the steps' time
    "background_most": BACKGROUNDS,  # the largest part of a block in which it worked, in millionths
    "background_sums": BACKGROUNDS * len(SUMS),  # by SUMS; some may be negative
}
SIGNED = ("background_sums",)


@dataclass(frozen=True, slots=True)
class Background:
    """What a rank has seen of one work."""

    kind: str
    name: str
    stretches: int
    worked_ns: int
    most: float
    """The largest part of a block in which it worked: of a thread that seldom gets Python's lock, less than 1."""
    step_ns: int
    """Rates are steps in this time."""
    sums: Mapping[str, float]
    """By SUMS, in seconds."""


def background_of(index: int, text: str, words: Mapping[str, tuple[int, ...]]) -> Background | None:
    """None if the work is not used, or its kind is not known."""
    kind, _, name = text.partition(" ")
    if kind not in KINDS:
        return None
    sums = words["background_sums"][index * len(SUMS) : (index + 1) * len(SUMS)]
    return Background(
        kind,
        name,
        words["background_stretches"][index],
        words["background_worked_ns"][index],
        words["background_most"][index] / UNIT,
        words["background_step_ns"][0],
        {name: value / UNIT for name, value in zip(SUMS, sums, strict=True)},
    )
