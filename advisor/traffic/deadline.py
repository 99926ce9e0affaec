"""How long switches take for the bytes of a training, and how many of them a deadline needs. Pure functions.

A byte crosses at least one switch, once, and a switch carries its rate in each direction. So the results are lower
bounds: in a network with several layers a byte crosses several switches, and the switches must also have a port for
each adapter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DAY = 86400.0
SWITCH = 51.2
"""Tbit/s of one switch, if nothing else is given: 64 ports of 800 Gbit/s."""
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Deadline:
    """A number of epochs that must end within a number of days, and the Tbit/s of one switch."""

    days: float
    epochs: float
    switch_tbps: float = SWITCH

    def switches(self, epoch_bytes: float) -> int:
        """The least number of switches, for the bytes of one epoch."""
        needed = switch_days(epoch_bytes, self.switch_tbps) * self.epochs / self.days
        return math.ceil(needed * (1 - _ROUNDING))


def switch_days(moved: float, switch_tbps: float = SWITCH) -> float:
    """Days in which one switch carries ``moved`` bytes."""
    return moved * 8 / (switch_tbps * 1e12) / DAY
