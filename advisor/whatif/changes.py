"""The changes of a what-if question, as a user writes them: `--network x10`, `--storage none`, `--checkpoint async`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from ...verdict.mounts import Key

NONE = 0.0
"""The factor for time that disappears."""
_TIMES = re.compile(r"x([0-9]+(?:\.[0-9]+)?)")
MOST_TIMES = 1e6


@dataclass(frozen=True, slots=True)
class Changes:
    """What is changed. A factor is the new time divided by the old time: x10 is 0.1, and `none` is 0."""

    network: float = 1.0
    """Transfers that ranks waited for."""
    groups: tuple[int, ...] = ()
    """With `network`: only the transfers of groups with these keys; empty: all. The command has no option for this;
    advice uses it."""
    storage: float = 1.0
    """Reads of data workers, saves and restores."""
    cpu: float = 1.0
    """The compute of data workers, the copies of saves, and queues for a CPU."""
    host: float = 1.0
    """The loop's own code, garbage collection, compilation, blocked code, the start of data workers."""
    compute: float = 1.0
    checkpoint: float = 1.0
    """Saves. Restores do not change."""
    reads: float = 1.0
    """Reads of data workers alone. The command has no option for this; advice uses it."""
    mounts: tuple[Key, ...] = ()
    """With `reads`: only those at these mounts, or at a place that nobody knows; empty: all."""
    async_save: bool = False
    """A save blocks the loop only while it copies."""
    no_stragglers: bool = False
    """No rank is late because of its own time."""
    late_by: tuple[str, ...] = ()
    """With `no_stragglers`: only lateness by these causes disappears; empty: by any. The command has no option for
    this; advice uses it."""
    balanced: bool = False
    """All stages of a pipeline compute for the same time."""
    workers: int = 0
    """The number of data workers that each rank gets in addition."""
    first_batches: bool = False
    """The first batch after `__iter__` is as quick as the others. The command has no option for this; advice uses
    it."""
    causes: tuple[str, ...] = ()
    """Causes of own time that disappear. The command has no option for this; advice uses it."""
    hidden: bool = False
    """For the upper bound: partly hidden transfers and unsplit waits disappear."""
    queued: bool = False
    """For the lower bound: a rank's own threads wait for a CPU as long as before, however fast the transfer is."""
    full: bool = False
    """For the lower bound: more workers read no faster from a mount of which nobody knows what limits it."""

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
        """The changes for the lower bound on what is saved."""
        return replace(self, queued=self.network < 1, full=self.workers > 0)

    def most(self) -> Changes:
        """The changes for the upper bound on what is saved."""
        if self.network < 1:
            return replace(self, network=NONE, hidden=True)
        return replace(self, hidden=self.no_stragglers or self.balanced)


def factor(text: str) -> float:
    """Parses a factor: `x10` is 0.1, `none` is 0. Raises ValueError with a sentence."""
    if text == "none":
        return NONE
    match = _TIMES.fullmatch(text)
    times = float(match[1]) if match else math.nan
    if not 0 < times <= MOST_TIMES:
        raise ValueError(f"{text!r}: write xK for K times faster, such as x10 or x1.5, or none")
    return 1.0 / times


def written(value: float) -> str:
    """A factor as a user writes it, such as x10."""
    return "none" if value == NONE else f"x{1 / value:g}"
