"""Work beside the training: its words and strings in the ledger.

An asynchronous save, a thread, another process, or a neighbour on the node works for a while. The watcher compares the
steps beside it with the nearest steps without it (`beside.py`), and counts here what it found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BACKGROUNDS = 6
"""How many works a ledger tells apart: those seen first."""
BACKGROUND_LABELS: tuple[str, ...] = tuple(f"background{index}" for index in range(BACKGROUNDS))
"""The strings `KIND NAME`. The string of an unused work is empty."""
KINDS: tuple[str, ...] = ("save", "process", "thread", "disk", "link", "neighbour")
"""What works, in the order in which one stretch of work is named if several are seen in it.

`save`: a save behind the loop, with the NAME `process` if another process writes it. `process`: a child of the rank,
except data workers. `thread`: a Python thread of the rank. `disk`: writes on a disk at which the loop was blocked.
`link`: bytes on a link of the rank's transfers that are not its own. `neighbour`: CPU time that is not the job's.
"""

PARTS: tuple[str, ...] = ("lock", "queue", "compute", "storage", "data", "waits", "host")
"""The parts of a step's time that are compared.

`lock`: waits for Python's lock. `queue`: the training thread was runnable without a CPU. `compute`, `storage` (the wait
for a batch whose worker was blocked), `data` (all other waits for batches), `waits` for other ranks. `host`: the rest.
"""

LAST = 12
"""How many of the last comparisons of each work the ledger keeps."""

BACKGROUND_WORDS: dict[str, int] = {
    "background_stretches": BACKGROUNDS,  # how often it has worked
    "background_steps": BACKGROUNDS,  # steps beside it, in thousandths
    "background_compared": BACKGROUNDS,  # stretches that were compared: there were steps without it before and after
    "background_compared_steps": BACKGROUNDS,  # the steps beside it in these, in thousandths
    "background_normal_ns": BACKGROUNDS,  # how long these would have taken without it
    "background_part_ns": BACKGROUNDS * len(PARTS),  # how much longer they took, by PARTS; may be negative
    # The last LAST stretches that were compared are kept one by one: the n-th at n % LAST.
    "background_last_steps": BACKGROUNDS * LAST,  # in thousandths
    "background_last_excess_ns": BACKGROUNDS * LAST,  # how much longer each step took; may be negative
    "background_last_drift_ns": BACKGROUNDS * LAST,  # a step after the work, less one before it
}
SIGNED = ("background_part_ns", "background_last_excess_ns", "background_last_drift_ns")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One stretch of work."""

    steps: float
    excess_ns: int
    """Of each step."""
    drift_ns: int


@dataclass(frozen=True, slots=True)
class Background:
    """What a rank has seen of one work."""

    kind: str
    name: str
    stretches: int
    steps: float
    compared: int
    compared_steps: float
    normal_ns: int
    part_ns: Mapping[str, int]
    last: tuple[Comparison, ...]


def background_of(index: int, text: str, words: Mapping[str, tuple[int, ...]]) -> Background | None:
    """None if the work is not used, or its kind is not known."""
    kind, _, name = text.partition(" ")
    if kind not in KINDS:
        return None

    def of(word: str) -> int:
        return words[f"background_{word}"][index]

    def last(word: str) -> tuple[int, ...]:
        return words[f"background_last_{word}"][index * LAST : (index + 1) * LAST]

    parts = words["background_part_ns"][index * len(PARTS) : (index + 1) * len(PARTS)]
    rows = zip(last("steps"), last("excess_ns"), last("drift_ns"), strict=True)
    compared = [Comparison(steps / 1000, excess, drift) for steps, excess, drift in rows if steps]
    return Background(
        kind,
        name,
        of("stretches"),
        of("steps") / 1000,
        of("compared"),
        of("compared_steps") / 1000,
        of("normal_ns"),
        dict(zip(PARTS, parts, strict=True)),
        tuple(compared),
    )
