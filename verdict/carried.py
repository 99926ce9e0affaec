"""What links carried for a rank, summed over its attempts. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ledger.layout import SLOTS
from ..ledger.links import LINKS, Link
from ..ledger.reader import Ledger

LEAST_SECONDS = 1.0
"""How long waits must have been looked at for a rate."""


@dataclass(slots=True)
class Carried:
    """One link of a rank. Counts are summed over the attempts of the rank."""

    newest: Link
    """As the last attempt saw it that had the link: its state, its speed and what limits it."""
    bytes: int = 0
    """What the rank's connections moved, both directions. If it uses RDMA, this is what anybody moved over the port."""
    sent: int = 0
    all: int = 0
    """What anybody moved over it, both directions."""
    busy: float = 0.0
    """Seconds in which the busiest connection had sent something that was not acknowledged."""
    window_full: float = 0.0
    """Part of `busy`: the receiver's window was full."""
    buffer_full: float = 0.0
    """Part of `busy`: the send buffer was full."""
    segments: int = 0
    resent: int = 0
    wait_bytes: int = 0
    """In looks in waits for collectives: the larger direction."""
    waited: float = 0.0
    """The seconds between these looks."""
    best: int = 0
    """The highest rate, over two seconds and more, in bits a second."""
    by_group: dict[int, int] = field(default_factory=dict)
    """Key of a group -> bytes in looks in its waits."""

    @property
    def entry(self) -> dict[str, object]:
        """As JSON."""
        link = self.newest
        return {"link": link.name, "kind": link.kind, "bytes": self.bytes, "bits_per_second": rate_of([self])}


Links = dict[tuple[str, str], Carried]
"""(kind, name) -> a link of a rank."""


def add_links(links: Links, ledger: Ledger) -> None:
    """Adds what one attempt of a rank moved over its links."""
    for link in ledger.links:
        one = links.setdefault((link.kind, link.name), Carried(link))
        one.newest = link
        one.bytes += link.carried
        one.sent += link.sent
        one.all += link.all
        one.busy += link.busy_ns / 1e9
        one.window_full += link.window_ns / 1e9
        one.buffer_full += link.buffer_ns / 1e9
        one.segments += link.segments
        one.resent += link.resent
        one.wait_bytes += link.wait_bytes
        one.waited += link.wait_ns / 1e9
        one.best = max(one.best, link.best)
        for slot in range(SLOTS):
            carried, key = (ledger.words["slot_link_bytes"][slot * LINKS + link.index], ledger.words["slot_key"][slot])
            if carried and key:
                one.by_group[key] = one.by_group.get(key, 0) + carried


def rate_of(ranks: list[Carried], transfers: float = 0.0) -> float | None:
    """The rate that ranks reach together over a link that they share, bits a second; None: not known.

    It is that of looks in waits. If they saw too little, it is what was sent, over the time in which something was
    under way, or for which a rank waited in ``transfers`` (seconds).
    """
    waited, busy = max(one.waited for one in ranks), max(one.busy for one in ranks)
    if waited >= LEAST_SECONDS or not busy:
        looked = [one.waited for one in ranks if one.waited > 0]  # each for its own time
        return 8 * sum(one.wait_bytes for one in ranks) / sum(looked) * len(looked) if looked else None
    return 8 * sum(one.sent for one in ranks) / max(busy, transfers)


def busy_seconds(links: Links) -> float:
    """For how long a TCP link of a rank surely had something to carry that its receiver took."""
    return max((one.busy - one.window_full for one in links.values() if one.newest.kind == "tcp"), default=0.0)
