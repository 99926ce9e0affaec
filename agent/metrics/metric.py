"""What the declaration of a metric consists of. Standard library alone: generators of rules import it too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric family.

    ``source`` says where its values come from: the file or the call that is read, relative to the root that holds it.
    For the metrics of the ledgers it is the word that is summed over a rank's attempts or, in angle brackets, what
    computes it. A word that is a vector gives one series per entry of ``series``, the values of the labels that follow
    the identity; None leaves an entry out. ``sparse`` leaves out a series that is still 0. A raw value times
    ``times`` by ``per`` is in the base unit.

    Two declarations are never equal, so that a metric can be looked up by itself, and fast.
    """

    name: str
    type: str  # counter, gauge or histogram
    unit: str  # base unit: seconds, bytes, ratio, ..., or what is counted; info or bool for what is always 1, or 0 or 1
    labels: tuple[str, ...]
    help: str
    source: str
    series: tuple[tuple[str, ...] | None, ...] = ((),)
    sparse: bool = False
    times: int = 1
    per: int = 1

    def base(self, raw: float) -> float:
        """A raw value in the base unit."""
        return raw * self.times / self.per if self.per != 1 else raw * self.times
