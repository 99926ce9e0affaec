"""What the ranks of a run read and write at each mount, and what limits its rate. Pure functions; thresholds are here.

The words of the ledgers are samples: the time for which looks found somebody blocked at a mount, and what was moved
meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import NamedTuple

from ..ledger.mounts import LIMITS, SIDES, Mount, common_path
from ..ledger.reader import Ledger
from .accounts import RankAccount
from .places import CONCENTRATION

LEAST_LOOKS = 10
"""With fewer looks that found somebody blocked at a mount, it is not said what limits it, unless it is at a known
limit."""
NAMED = 4
"""With fewer ones, it is not named."""
SHARE = 0.10
"""A mount is named if it has at least this share of the blocked seconds, of ranks that are blocked this share of their
time."""
MOST_SEEN = 0.5
"""A headline names mounts only if they have this share of the blocked seconds. The rest is in locks, sleeps and other
mounts."""
LEAST_SECONDS = 1.0
"""A rate counts if it was measured for this long: a few looks, so that one long read does not make it."""
FLAT, PROPORTIONAL = 0.25, 0.75
"""Rate grows as readers ** exponent: with at most FLAT it is the bandwidth of the mount that limits, with at least
PROPORTIONAL it is the latency of each read. 0 and 1 are exact; half of the way is left between them."""
APART = 1.25
"""Two numbers of readers are compared if they differ by this factor. Closer ones differ less than rates vary."""
SATURATED = 0.9
"""A mount at its bandwidth is always busy if this share of the looks in waits found somebody blocked there."""
NEAR = 0.15
"""A known limit is reached if the rate is within this share of it."""
QUEUED, LEAST_OPERATIONS = 2.0, 100
"""Operations queue in the client if they wait there for this many times as long as the server then takes."""
BANDWIDTH, LATENCY, QUEUEING = "bandwidth", "latency", "queueing"
KINDS: dict[str, tuple[str, ...]] = {
    "data": ("data_read",),
    "save": ("checkpoint_write", "checkpoint_read"),
    "own": ("host", "host_blocked", "logging"),
}
"""What the loop was blocked in -> the causes that have this time."""
_SUMMED = (
    *("looks", "guesses", "metadata_looks", "fault_looks", "write_looks", "sync_looks", "readers"),
    *("calls_seen", "call_bytes", "bytes", "measured_ns", "operations", "queue_ns", "trip_ns", "resent", "opened"),
)

Key = tuple[str, str, str]


class Found(NamedTuple):
    """A mount in the ledger of a rank."""

    rank: int
    node: str
    mount: Mount


@dataclass(slots=True)
class MountAccount:
    """One mount, summed over the ranks that were blocked at it, and over their attempts."""

    point: str
    first: str
    fstype: str
    source: str
    spent: dict[int, dict[str, float]] = field(default_factory=dict)
    """Rank -> kind (see KINDS) -> seconds for which it was blocked there."""
    nodes: dict[str, dict[int, float]] = field(default_factory=dict)
    """Node -> rank -> its mean number of readers."""
    counted: bool = True
    """Whether the mount's own counters measured `bytes`. Otherwise, those of the processes did: an upper bound."""
    limit: int = 0
    """Bytes a second that are allowed; 0: not known."""
    limit_by: str = ""
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMMED, 0))
    beside: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)] * SIDES)
    """(bytes, ns) by the number of readers at the same time, less 1."""

    @property
    def key(self) -> Key:
        return self.point, self.fstype, self.source

    def seconds(self, kind: str, rank: int | None = None) -> float:
        return sum(spent[kind] for number, spent in self.spent.items() if rank in (None, number))

    @property
    def looks(self) -> int:
        return self.sums["looks"]

    def part(self, looks: str) -> float:
        """The share of the looks that were, for example, `metadata_looks`."""
        return self.sums[looks] / self.looks if self.looks else 0.0

    @property
    def shared(self) -> bool:
        """Whether several ranks of a node were blocked at it."""
        return any(len(ranks) > 1 for ranks in self.nodes.values())

    @property
    def remote(self) -> bool:
        """Whether several nodes may wait for the same server."""
        return len(self.nodes) > 1 and not self.source.startswith("/dev/")

    @property
    def rate(self) -> float | None:
        """Bytes a second of the mount on a node; if they were not counted, of a rank. None: not measured."""
        if not self.counted and self.fstype != "overlay" and 2 * self.sums["fault_looks"] > self.looks:
            return None  # for pages of such mounts, neither the mount nor the process counts bytes
        measured, size = self.sums["measured_ns"] / 1e9, self.sums["bytes"]
        return self._allowed(size / measured) if measured >= LEAST_SECONDS and size else None

    @property
    def opened(self) -> float | None:
        """Files a second that a node's client has asked the server to open. None: not known, or none."""
        measured, count = self.sums["measured_ns"] / 1e9, self.sums["opened"]
        return count / measured if measured >= LEAST_SECONDS and count else None

    def _allowed(self, rate: float) -> float:
        """A disk goes on reading ahead while the loop that reads computes, so a rate may seem larger than its limit."""
        return min(rate, self.limit) if self.limit and self.counted else rate

    @property
    def readers(self) -> float:
        """How many processes of a rank were blocked there at the same time, on average."""
        return self.sums["readers"] / self.looks if self.looks else 0.0

    @property
    def others(self) -> float:
        """At most how many processes of the node's other ranks were blocked there beside those of a rank."""
        beside = [sum(ranks.values()) * (1 - 1 / len(ranks)) for ranks in self.nodes.values()]
        return sum(beside) / len(beside) if beside else 0.0

    @property
    def call_bytes(self) -> float | None:
        """The mean size of a read or write call."""
        seen = self.sums["calls_seen"]
        return self.sums["call_bytes"] / seen if seen >= LEAST_LOOKS and self.sums["call_bytes"] else None

    @property
    def call_seconds(self) -> float | None:
        """How long a call takes (Little's law: calls at the same time = calls a second x seconds of a call). An upper
        bound of the rate gives a lower bound."""
        if self.rate is None or self.call_bytes is None:
            return None
        reading = 1 - (self.part("metadata_looks") or 0.0)  # the others open files, or ask for their sizes
        return reading * (self.readers + (self.others if self.counted else 0.0)) * self.call_bytes / self.rate

    @property
    def by_readers(self) -> list[tuple[float, float]]:
        """(readers at the same time, bytes a second) where that was measured for long enough, fewest readers first."""
        known = [(number, size, ns) for number, (size, ns) in enumerate(self.beside, 1) if ns]
        whole = sum(ns for _, _, ns in known)
        found = []
        for number, size, ns in known:
            if number == SIDES:  # and more: as many as the mean over all looks leaves for it
                fewer = sum(each * time for each, _, time in known if each < SIDES)
                number = max(float(SIDES), (self.readers * whole - fewer) / ns)
            if ns >= 1e9 * LEAST_SECONDS:
                found.append((float(number), self._allowed(1e9 * size / ns)))
        return found

    @property
    def limited_by(self) -> str:
        """BANDWIDTH: more readers get no more. LATENCY: each is as fast as before. QUEUEING: they wait in the client.
        Empty: not known."""
        if self.looks < LEAST_LOOKS:  # a known limit that is reached is enough
            return BANDWIDTH if self._at_limit and self.looks >= NAMED else ""
        queue, trip = self.sums["queue_ns"], self.sums["trip_ns"]
        if self.sums["operations"] >= LEAST_OPERATIONS and queue >= QUEUED * trip > 0:
            return QUEUEING
        return BANDWIDTH if self._at_limit else self._by_growth

    @property
    def _at_limit(self) -> bool:
        if not self.limit or self.rate is None:
            return False
        if self.counted:
            return self.rate >= (1 - NEAR) * self.limit
        return not self.shared and abs(self.rate - self.limit) <= NEAR * self.limit

    @property
    def _by_growth(self) -> str:
        """Other ranks that read at the same time change how a rate grows with the readers of one rank. So bandwidth
        must show although all of them may, and latency although none of them may."""
        rates = self.by_readers
        if len(rates) < 2 or not all(rate > 0 for _, rate in rates):
            return ""
        (few, slow), (many, fast) = rates[0], rates[-1]
        growth = log(fast / slow)
        beside = self.others
        if (many + beside) / (few + beside) >= APART and growth <= FLAT * log((many + beside) / (few + beside)):
            return BANDWIDTH
        # A rank that reads more beside others may only take a larger part of what all get.
        blind = self.remote or (self.shared and not self.counted)
        return LATENCY if many / few >= APART and growth >= PROPORTIONAL * log(many / few) and not blind else ""

    @property
    def floor(self) -> tuple[float, float]:
        """The least part of the time of reads that is left with any number of readers: likely, and at worst."""
        kind = self.limited_by
        if kind in (BANDWIDTH, QUEUEING):
            return 1.0, 1.0
        allowed = min(1.0, self.rate / self.limit) if self.limit and self.rate else 0.0
        return allowed, allowed if kind == LATENCY else 1.0


def of_ranks(ranks: Iterable[RankAccount]) -> list[MountAccount]:
    """The mounts of some ranks, that with the most seconds first."""
    return summed(Found(rank.rank, node, mount) for rank in ranks for node, mount in rank.mounts)


def summed(entries: Iterable[Found]) -> list[MountAccount]:
    accounts: dict[Key, MountAccount] = {}
    readers: dict[tuple[Key, str, int], tuple[int, int]] = {}
    for rank, node, mount in entries:
        key = mount.point, mount.fstype, mount.source
        account = accounts.setdefault(key, MountAccount(mount.point, mount.first, mount.fstype, mount.source))
        account.first = common_path(account.first, mount.first)
        spent = account.spent.setdefault(rank, dict.fromkeys(KINDS, 0.0))
        for kind in KINDS:
            spent[kind] += mount.words[f"{kind}_ns"] / 1e9
        for name in _SUMMED:
            account.sums[name] += mount.words[name]
        account.beside = [
            (size + more, ns + longer) for (size, ns), (more, longer) in zip(account.beside, mount.beside, strict=True)
        ]
        if mount.measured_ns and not mount.counted:
            account.counted = False
        if mount.limit > account.limit:
            account.limit = mount.limit
            account.limit_by = LIMITS[mount.limit_by] if 0 <= mount.limit_by < len(LIMITS) else ""
        found, looks = readers.get((key, node, rank), (0, 0))
        readers[key, node, rank] = found + mount.readers, looks + mount.looks
    for (key, node, rank), (found, looks) in readers.items():
        accounts[key].nodes.setdefault(node, {})[rank] = found / looks if looks else 0.0
    return sorted(accounts.values(), key=lambda one: -sum(map(one.seconds, KINDS)))


def at_fault(ranks: Sequence[RankAccount], kind: str) -> list[MountAccount]:
    """The mounts at which the loop lost much time of a kind, worst first. Ranks that lost little do not count."""
    slow = [rank for rank in ranks if rank.wall > 0 and _blocked([rank], kind) >= SHARE * rank.wall]
    blocked = _blocked(slow, kind)
    found = [one for one in of_ranks(slow) if one.looks >= NAMED and one.seconds(kind) >= SHARE * blocked]
    return sorted(found, key=lambda one: -one.seconds(kind)) if blocked > 0 else []


def most_of(ranks: Sequence[RankAccount], kind: str) -> list[MountAccount]:
    """The one or two mounts that have most of the blocked seconds of a kind; empty if there is none."""
    found = at_fault(ranks, kind)
    worst = [one for one in found if 2 * one.seconds(kind) >= found[0].seconds(kind)]
    looked = sum(one.seconds(kind) for one in of_ranks(ranks))
    least = max(CONCENTRATION * looked, MOST_SEEN * _blocked(ranks, kind))
    return worst if len(worst) <= 2 and sum(one.seconds(kind) for one in worst) >= least else []


def _blocked(ranks: Iterable[RankAccount], kind: str) -> float:
    return sum(
        rank.seconds[cause]
        for rank in ranks
        for cause in KINDS[kind]
        if cause != "host" or rank.newest.device != "cpu"  # a CPU rank that is blocked is in `host_blocked`
    )


class Part(NamedTuple):
    """A part of the reads of a rank: see `MountAccount.floor`."""

    weight: float
    floor: float
    worst: float
    at: Key | None = None
    """The mount; None: not known."""


UNKNOWN = (Part(1.0, 0.0, 1.0),)


def floors(ledgers: Iterable[Ledger]) -> Mapping[int, tuple[Part, ...]]:
    """Rank -> the parts of its reads for batches. Ranks of which nothing is known are absent."""
    accounts = summed(Found(one.rank, one.node, mount) for one in ledgers for mount in one.mounts)
    found: dict[int, list[Part]] = {}
    for account in accounts:
        for rank in account.spent:
            if (spent := account.seconds("data", rank)) > 0:
                found.setdefault(rank, []).append(Part(spent, *account.floor, account.key))
    return {
        rank: tuple(part._replace(weight=part.weight / sum(one.weight for one in parts)) for part in parts)
        for rank, parts in found.items()
    }


def full(ranks: Iterable[RankAccount], kind: str) -> float:
    """The share of the blocked seconds of a kind that is at mounts where more readers get no more."""
    every = of_ranks(ranks)
    whole = sum(one.seconds(kind) for one in every)
    stuck = sum(one.seconds(kind) for one in every if one.floor[0] == 1.0)
    return stuck / whole if whole > 0 else 0.0


def saturated(ranks: Sequence[RankAccount]) -> bool:
    """Whether looks in waits nearly always found somebody at a mount that is at its bandwidth."""
    newest = [rank.newest for rank in ranks]
    every = sum(ledger.words["mount_looks_all"][0] for ledger in newest)
    found = summed(Found(ledger.rank, ledger.node, mount) for ledger in newest for mount in ledger.mounts)
    busy = sum(one.looks for one in found if one.floor[0] == 1.0)
    return busy >= max(NAMED, SATURATED * every)


def latent(ranks: Iterable[RankAccount], kind: str) -> bool:
    """Whether latency is known to be what limits most of the blocked seconds of a kind."""
    every = of_ranks(ranks)
    slow = sum(one.seconds(kind) for one in every if one.limited_by == LATENCY)
    return 0 < CONCENTRATION * sum(one.seconds(kind) for one in every) <= slow
