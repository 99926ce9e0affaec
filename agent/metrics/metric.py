"""The declaration of a metric. Imports only the standard library, because generators of rules use it too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric family.

    ``source`` is the file or the call that the values are read from, relative to its root. For metrics of ledgers it is
    the word that is summed over a rank's attempts, or the name of a computation in angle brackets.

    If the word is a vector, each entry is one series. ``series`` has, for each entry, the values of the labels that
    follow the identity, or None to leave the entry out. ``sparse`` leaves out series that are 0. Raw values are
    converted to the base unit as value * ``times`` / ``per``.

    Metrics are compared by identity (``eq=False``), so that they are fast dictionary keys.
    """

    name: str
    type: str  # counter, gauge or histogram
    unit: str  # base unit (seconds, bytes, ratio, ...) or what is counted; "info" if always 1, "bool" if 0 or 1
    labels: tuple[str, ...]
    help: str
    source: str
    series: tuple[tuple[str, ...] | None, ...] = ((),)
    sparse: bool = False
    times: int = 1
    per: int = 1

    def base(self, raw: float) -> float:
        """Converts a raw value to the base unit."""
        return raw * self.times / self.per if self.per != 1 else raw * self.times
