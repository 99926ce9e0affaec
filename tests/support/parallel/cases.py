"""The shapes as a table: which rank has which fault. Without torch, because the test reads it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    reads: int
    """The rank with slow reads in the case with that name."""
    compute: int
    """The rank with slow compute."""
    link: tuple[int, int]
    """The two ranks with a slow link between them: a group, or neighbours in a ring or pipeline."""
    bits_per_second: int
    rows: int = 32
    """The number of samples in a batch of one rank."""
    reader_of: Callable[[int], int] = lambda rank: rank
    """Ranks with the same value read the same data."""
    pipelines: tuple[tuple[int, ...], ...] = ()
    """The ranks of each pipeline, by stage."""
    microbatches: int = 1

    @property
    def stages(self) -> int:
        return len(self.pipelines[0])


MBIT = 1_000_000
SHAPES: dict[str, Shape] = {
    "fsdp2": Shape(reads=1, compute=2, link=(1, 2), bits_per_second=14 * MBIT),
    "hsdp": Shape(reads=1, compute=2, link=(0, 2), bits_per_second=4 * MBIT),
    "tp-dp": Shape(reads=1, compute=2, link=(0, 2), bits_per_second=10 * MBIT, reader_of=lambda rank: rank // 2),
    "two-ddp": Shape(
        reads=3,
        compute=1,
        link=(2, 3),
        bits_per_second=10 * MBIT,
    ),
    "experts": Shape(reads=2, compute=3, link=(0, 1), bits_per_second=16 * MBIT, rows=256),
    "pp-dp": Shape(
        reads=0,
        compute=3,
        link=(0, 1),
        bits_per_second=4 * MBIT,
        rows=256,
        reader_of=lambda rank: rank % 2,
        pipelines=((0, 2), (1, 3)),
        microbatches=4,
    ),
    "gpipe": Shape(
        reads=0,
        compute=2,
        link=(1, 2),
        bits_per_second=18 * MBIT,
        rows=256,
        reader_of=lambda rank: 0,
        pipelines=((0, 1, 2, 3),),
        microbatches=4,
    ),
    "1f1b": Shape(
        reads=0,
        compute=2,
        link=(1, 2),
        bits_per_second=18 * MBIT,
        rows=256,
        reader_of=lambda rank: 0,
        pipelines=((0, 1, 2, 3),),
        microbatches=4,
    ),
}
