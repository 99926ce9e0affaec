"""What is changed in a what-if, as a user writes it: `--network x10`, `--storage none`, `--checkpoint async`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

NONE = 0.0
"""The factor of time that is gone."""
_TIMES = re.compile(r"x([0-9]+(?:\.[0-9]+)?)")
MOST_TIMES = 1e6


@dataclass(frozen=True, slots=True)
class Changes:
    """How long something takes then, as a part of how long it took: x10 is 0.1, and none is 0."""

    network: float = 1.0
    """Transfers that ranks waited for."""
    storage: float = 1.0
    """Reads of data workers, saves and restores."""
    cpu: float = 1.0
    """What data workers compute, what saves copy, and queues for a CPU."""
    host: float = 1.0
    """The loop's own code, garbage collection, compilation, blocked code."""
    compute: float = 1.0
    checkpoint: float = 1.0
    """All of a save. Restores stay."""
    async_save: bool = False
    """A save blocks the loop only while it copies."""
    no_stragglers: bool = False
    """No rank is late by its own time."""
    balanced: bool = False
    """The stages of a pipeline compute for equally long."""
    workers: int = 0
    """Data workers that each rank has more."""
    causes: tuple[str, ...] = ()
    """Causes of own time that are gone; no option of the command has them."""
    hidden: bool = False
    """For the upper bound: a transfer that is partly hidden is gone, and so are waits that nobody could split."""
    queued: bool = False
    """For the lower bound: a rank's own threads get no CPU for as long, however fast the transfer is."""

    @property
    def any(self) -> bool:
        return self != Changes()

    @property
    def scaled(self) -> Iterator[str]:
        """The names of the factors that are changed."""
        return (
            field.name for field in fields(self) if isinstance(value := getattr(self, field.name), float) and value != 1
        )

    def least(self) -> Changes:
        """For the lower bound on what the changes bring."""
        return replace(self, queued=self.network < 1)

    def most(self) -> Changes:
        """For the upper bound."""
        if self.network < 1:
            return replace(self, network=NONE, hidden=True)
        return replace(self, hidden=self.no_stragglers or self.balanced)


def factor(text: str) -> float:
    """`x10` -> 0.1, `none` -> 0. Raises ValueError with a sentence."""
    if text == "none":
        return NONE
    match = _TIMES.fullmatch(text)
    times = float(match[1]) if match else math.nan
    if not 0 < times <= MOST_TIMES:
        raise ValueError(f"{text!r}: write xK for K times faster, such as x10 or x1.5, or none")
    return 1.0 / times


def written(value: float) -> str:
    """The factor as a user writes it."""
    return "none" if value == NONE else f"x{1 / value:g}"
