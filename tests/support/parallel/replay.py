"""How a delay of one rank becomes a loss of others: replays the run, event by event, with and without the delay.

Each rank has its *delay*: how much later it is than without the injected fault. Three kinds of events change it, in the
order of time:

* An injection makes one rank later by the injected time.
* In a call, no rank continues before the last member has entered, at max(entries). Without the delays this would be at
max(entries - delays). All members leave with the difference as their delay. A member that had a smaller delay has lost
the rest by waiting. A member that would have waited for another rank anyway loses nothing.
* A transfer over a slow link delays each member of a call by the time that it was in the call after the last had
entered.

The loss of a rank is the sum of what was injected in it and of what it lost by waiting. This needs no model of the
computation, only the records of which ranks met when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallel.spec import RANKS


@dataclass(frozen=True)
class Injected:
    """A rank is later by ``ns`` from ``at`` on."""

    at: int
    rank: int
    ns: int
    lost: bool = True
    """False if the rank did work in that time: then only others lose time."""


@dataclass(frozen=True)
class Met:
    """The members of a call, and when each entered and left it."""

    entered: Mapping[int, int]
    left: Mapping[int, int]
    slow: bool = False
    """A slow link is between these ranks."""

    @property
    def at(self) -> int:
        return max(self.entered.values())


@dataclass(frozen=True)
class Piped:
    """The stages of a pipeline, in the order in which data pass them: forwards, or backwards for the gradients.

    Each has waited for the latest of those before it, but for no longer than it was idle.
    """

    at: int
    idle: Mapping[int, int]


Event = Injected | Met | Piped


@dataclass
class Losses:
    """ns per rank, since the start."""

    delay: list[int] = field(default_factory=lambda: [0] * RANKS)
    lost: list[int] = field(default_factory=lambda: [0] * RANKS)

    def injected(self, event: Injected) -> None:
        self.delay[event.rank] += event.ns
        self.lost[event.rank] += event.ns if event.lost else 0

    def met(self, event: Met) -> None:
        without = max(at - self.delay[rank] for rank, at in event.entered.items())
        later = event.at - without
        for rank, left in event.left.items():
            transfer = max(0, left - event.at) if event.slow else 0
            self.lost[rank] += max(0, later - self.delay[rank]) + transfer
            self.delay[rank] = later + transfer

    def piped(self, event: Piped) -> None:
        latest = 0
        for rank, idle in event.idle.items():
            latest = max(latest, self.delay[rank])
            self.lost[rank] += min(idle, latest - self.delay[rank])
            self.delay[rank] = latest


def replay(events: Sequence[Event]) -> list[float]:
    """The seconds that each rank lost."""
    losses = Losses()
    for event in sorted(events, key=lambda one: (one.at, not isinstance(one, Injected))):
        if isinstance(event, Injected):
            losses.injected(event)
        elif isinstance(event, Met):
            losses.met(event)
        else:
            losses.piped(event)
    return [ns / 1e9 for ns in losses.lost]
