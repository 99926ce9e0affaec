"""The links that carry the transfers of a run: how fast they are, what limits them, and what else the nodes have.

Pure functions. What is not known is None, 0 or empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_interface

from ..ledger.links import RDMA_MISSING, SHAPERS, Link
from .accounts import RankAccount, RunAccount
from .carried import Carried, rate_of

REACHED = 0.85
"""A link is at its limit if its rate is at least this part of it."""
QUEUE, PARTLY = 20.0, 0.5
"""Or if it is at least PARTLY of a shaper's limit, and round trips take QUEUE times as long as the least one: what is
sent queues in front of the shaper. The link is at its limit then in a part of each transfer."""
HEADERS, OTHERS = 0.1, 0.15
"""Interfaces count headers and acknowledgements, too. Others use a link if they move this share of its bytes: other
programs, or the run's files."""
CARRIES = 0.2
"""A link carries the transfers of a rank in a group if it has at least this part of their bytes."""
MOSTLY = 0.75
SLOWER = 1.5
"""A link is slower than another if the other one is this many times as fast."""
FASTER = 2.0
"""Another link is faster if it is this many times as fast as what the transfers reach, and as the limit."""
IDLE = 0.1
"""Another link is idle if it carries less than this part of the bytes."""
RESENT = 0.005
"""The share of segments that were sent again from which this is a trouble."""
FULL = 0.5
"""A full window or buffer is a trouble in this share of the time in which something was under way."""
SMALL_MTU = 1280
"""Tunnels have packets of 1400 bytes and more, and IPv6 needs this size."""
NOMINAL = 1.05
"""An interface that carries this many times its speed only claims one, as veth and tun do."""
MINOR = 0.2
"""Groups of a name are told apart if they have at least this part of the time of all transfers."""


@dataclass(frozen=True, slots=True)
class Spare:
    """Another link that is up on every node of the run, faster, and idle."""

    kind: str
    names: Mapping[int, str]
    """Rank -> the link's name there, for the ranks that have a ledger here."""
    capacity: int
    """The speed of the slowest of them, bits a second."""
    carries: float
    """The largest part of the bytes of the link in use that one of them carries."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """The link that carries the transfers of some groups. If ranks have links of different speeds, the slowest one.

    All rates are in bits a second.
    """

    groups: tuple[str, ...]
    keys: tuple[int, ...]
    """Of these groups."""
    share: float
    """The part of all ranks' time that transfers and unsplit waits in these groups take."""
    kind: str
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    """The ranks that use it."""
    apart: bool
    """Whether other ranks have a faster link."""
    others: tuple[str, ...]
    """The names of that one."""
    others_capacity: int
    rate: float | None
    """In waits, of all ranks of a node together."""
    best: float | None
    """The highest rate, over two seconds and more."""
    limit: int | None
    """Of a shaper."""
    limited_by: str | None
    speed: int | None
    """Of the hardware. None if it is not known."""
    mtu: int | None
    round_trip: float | None
    """Seconds."""
    least_round_trip: float | None
    resent: float | None
    """The share of segments that were sent again."""
    window_full: float | None
    """The share of the time with something under way in which the receiver's window was full."""
    buffer_full: float | None
    others_share: float | None
    """The share of what the link moved that was not the run's."""
    spare: Spare | None
    rdma_missing: tuple[str, ...]
    """Names in RDMA_MISSING. With RDMA in use, this can only be `gpudirect`."""

    @property
    def capacity(self) -> int:
        """0: not known."""
        return self.limit or self.speed or 0

    @property
    def reached(self) -> float:
        """0: not known."""
        return max(self.rate or 0.0, self.best or 0.0)

    @property
    def at_limit(self) -> bool:
        if 0 < REACHED * self.capacity <= self.reached / (1 - (self.others_share or 0.0)):
            return True
        queue = (self.round_trip or 0.0) >= QUEUE * (self.least_round_trip or 1.0)
        return queue and self.limit is not None and self.reached >= PARTLY * self.limit

    @property
    def small_packets(self) -> bool:
        return 0 < (self.mtu or 0) < SMALL_MTU

    @property
    def lossy(self) -> bool:
        """At its limit, a shaper drops packets of a healthy connection."""
        return not self.at_limit and (self.resent or 0.0) >= RESENT

    @property
    def full(self) -> list[tuple[str, float]]:
        """What was full in much of the time -> in which share."""
        buffers = (("the receiver's window", self.window_full), ("the send buffer", self.buffer_full))
        return [(what, share) for what, share in buffers if share and share >= FULL and not self.at_limit]

    @property
    def troubled(self) -> bool:
        return self.at_limit or self.apart or self.small_packets or self.lossy or bool(self.full)


@dataclass(frozen=True, slots=True)
class _Use:
    """A link that carries the transfers of a rank."""

    rank: RankAccount
    carried: Carried
    part: float
    """Of the rank's bytes in the group."""

    @property
    def link(self) -> Link:
        return self.carried.newest

    @property
    def capacity(self) -> int:
        return capacity_of(self.link)


def capacity_of(link: Link) -> int:
    """What a link can carry, bits a second; 0: not known."""
    return link.limit or link.speed


def carriers(account: RunAccount) -> list[Carrier]:
    """The links that carry the transfers of the groups which take most of their time; the most time first."""
    spent = _transfers(account)
    least = MINOR * sum(spent.values())
    found: dict[tuple[object, ...], Carrier] = {}
    for label in sorted(spent, key=lambda label: -spent[label]):
        uses = _uses(account.ranks, label)
        if not uses or spent[label] < least or not account.rank_seconds:
            continue
        slow = _slowest(uses)
        same = (*sorted((use.rank.rank, use.link.kind, use.link.name) for use in slow),)
        before = found.get(same)
        one = _carrier(account, label, spent[label], uses, slow)
        found[same] = one if before is None else _together(before, one)
    return [*found.values()]


def _together(one: Carrier, other: Carrier) -> Carrier:
    """Groups whose transfers use the same link."""
    return replace(one, groups=one.groups + other.groups, keys=one.keys + other.keys, share=one.share + other.share)


def _transfers(account: RunAccount) -> dict[str, float]:
    """Label of groups -> the seconds in their transfers; if no wait was split, in their waits. An empty label: groups
    are not known."""
    split: dict[str, float] = defaultdict(float)
    unsplit: dict[str, float] = defaultdict(float)
    for rank in account.ranks:
        for group in rank.groups.values():
            split[group.label] += group.network + group.latency
            unsplit[group.label] += group.unsplit
    if any(split.values()):
        return {label: seconds for label, seconds in split.items() if seconds > 0}
    waited = sum(rank.seconds["network"] + rank.seconds["collective"] for rank in account.ranks)
    if not (whole := sum(unsplit.values())):
        return {"": waited}
    # The unsplit waits of a group also contain those before the first step.
    return {label: seconds * min(1.0, waited / whole) for label, seconds in unsplit.items() if seconds > 0}


def _uses(ranks: Sequence[RankAccount], label: str) -> list[_Use]:
    """The links that the groups of a label use. Those inside a node count only if nothing leaves it."""
    found: list[_Use] = []
    for rank in ranks:
        keys = [key for key, group in rank.groups.items() if group.label == label]
        if label and not keys:
            continue
        sizes = [(one, sum(one.by_group.get(key, 0) for key in keys)) for one in rank.links.values()]
        # Groups are told apart by looks. Without other groups, the whole bytes are more exact.
        if not any(size for _, size in sizes) or all(one.by_group.keys() <= {*keys} for one in rank.links.values()):
            sizes = [(one, one.bytes) for one in rank.links.values()]
        if not any(size for _, size in sizes):  # such as shared memory
            sizes = [(one, 1) for one in rank.links.values() if one.newest.kind == "node"]
        whole = sum(size for _, size in sizes)
        found += [_Use(rank, one, size / whole) for one, size in sizes if size and size >= CARRIES * whole]
    return [use for use in found if use.link.kind != "node"] or found


def _slowest(uses: Sequence[_Use]) -> list[_Use]:
    """The slow ones, if some are slower; otherwise all. Neighbours of a rank with a slow link use that link, too, so
    ranks that use hardly anything else come first."""
    least = min(use.capacity for use in uses)
    slow = [use for use in uses if use.capacity < SLOWER * least]
    if not least or len(slow) == len(uses):
        return [*uses]
    return [use for use in slow if use.part >= MOSTLY] or slow


def _carrier(account: RunAccount, label: str, spent: float, uses: Sequence[_Use], slow: Sequence[_Use]) -> Carrier:
    ranks = sorted({use.rank.rank for use in slow})
    rest = [use for use in uses if use.rank.rank not in ranks and use.capacity >= SLOWER * slow[0].capacity]
    links = [use.carried for use in slow]
    busiest = max(links, key=lambda one: one.bytes).newest
    limited = min((use.link for use in slow if use.link.limit), key=lambda link: link.limit, default=None)
    busy, segments = sum(one.busy for one in links), sum(one.segments for one in links)
    resent = sum(one.resent for one in links) / segments if segments else None
    rates = []
    for same in _by_place(slow):
        # What is lost stops the receiver, too, which has nothing under way then.
        waited = max(_waited(use.rank, label) for use in same) if (resent or 0.0) >= RESENT else 0.0
        if rate := rate_of([use.carried for use in same], waited):
            rates.append(rate)
    rate, best = min(rates, default=None), max(one.best for one in links) or None
    if rate and best and limited and rate > limited.limit:  # what it receives in bursts is not limited
        rate = min(rate, best)
    speed = _least(links, "speed")
    if speed and max(rate or 0.0, best or 0.0) > NOMINAL * speed:
        speed = None
    missing = [
        name
        for bit, name in enumerate(RDMA_MISSING)
        if all(use.rank.newest.words["rdma_missing"][0] >> bit & 1 for use in slow)
    ]
    one = Carrier(
        groups=(label,) if label else (),
        keys=tuple(sorted({key for use in uses for key, of in use.rank.groups.items() if of.label == label})),
        share=spent / account.rank_seconds,
        kind=busiest.kind,
        names=tuple(_distinct(use.link.name for use in slow)),
        ranks=tuple(ranks),
        apart=bool(rest),
        others=tuple(_distinct(use.link.name for use in rest)),
        others_capacity=min((use.capacity for use in rest), default=0),
        rate=rate,
        best=best,
        limit=limited.limit if limited else None,
        limited_by=SHAPERS[limited.limit_by] if limited and limited.limit_by < len(SHAPERS) else None,
        speed=speed,
        mtu=_least(links, "mtu"),
        round_trip=busiest.trip_ns / 1e9 or None,
        least_round_trip=(_least(links, "least_trip_ns") or 0) / 1e9 or None,
        resent=resent,
        window_full=sum(one.window_full for one in links) / busy if busy else None,
        buffer_full=sum(one.buffer_full for one in links) / busy if busy else None,
        others_share=_others_share(slow) if busiest.kind == "tcp" else None,
        spare=None,
        rdma_missing=tuple(missing) if busiest.kind != "node" else (),
    )
    return replace(one, spare=_spare(account, one, slow))


def _waited(rank: RankAccount, label: str) -> float:
    """Seconds in the transfers of the groups of a label; an empty one means all of them."""
    if not label:
        return rank.seconds["network"]
    return sum(group.network for group in rank.groups.values() if group.label == label)


def _by_place(uses: Iterable[_Use]) -> list[list[_Use]]:
    """Ranks of a node share a link. Two containers have the same node, and different addresses."""
    found: dict[tuple[str, str, str, str], list[_Use]] = {}
    for use in uses:
        place = (use.rank.newest.node, use.link.kind, use.link.name, use.link.address)
        found.setdefault(place, []).append(use)
    return [*found.values()]


def _others_share(uses: Sequence[_Use]) -> float | None:
    """The largest share of any of these links; None if it is small, or not known."""
    shares = [
        1 - (1 + HEADERS) * sum(use.carried.bytes for use in same) / every
        for same in _by_place(uses)
        if (every := max(use.carried.all for use in same))
    ]
    return most if (most := max(shares, default=0.0)) >= OTHERS else None


def _least(links: Sequence[Carried], word: str) -> int | None:
    return min((value for one in links if (value := one.newest.words[word])), default=None)


def _distinct(names: Iterable[str]) -> list[str]:
    return sorted({*names})


# -- what else there is


def _spare(account: RunAccount, carrier: Carrier, slow: Sequence[_Use]) -> Spare | None:
    """The fastest of the links that the transfers could use instead. None if the link in use is not at fault, as far
    as that is known."""
    known = carrier.capacity > 0
    if carrier.kind == "node" or not carrier.reached or (known and not (carrier.at_limit or carrier.lossy)):
        return None
    wanted = FASTER * max(carrier.reached, carrier.capacity if carrier.at_limit else 0)
    first = slow[0].rank
    used = [use.link for use in slow if use.rank is first]
    rdma = first.newest.device != "cpu" and not first.newest.words["rdma_missing"][0]
    spares = (
        _as_spare(account, one.newest, slow)
        for one in first.links.values()
        if one.newest not in used and (rdma or one.newest.kind != "rdma")
    )
    fast = [spare for spare in spares if spare is not None and spare.capacity >= max(wanted, carrier.capacity)]
    return max(fast, key=lambda spare: spare.capacity, default=None)


def _as_spare(account: RunAccount, link: Link, slow: Sequence[_Use]) -> Spare | None:
    """A link and its peers on the other nodes; None if they are not up everywhere, or not idle for the slow ranks."""
    peers = {rank.rank: one for rank in account.ranks if (one := _peer(rank, link)) is not None}
    world, local = (account.ranks[0].newest.words[word][0] for word in ("world_size", "local_world_size"))
    if len(peers) < world and not (local and link.nodes * local >= world):
        return None
    carries = 0.0
    for use in slow:
        peer, all_bytes = peers.get(use.rank.rank), use.carried.all
        if peer is None or not all_bytes:
            return None
        carries = max(carries, peer.all / all_bytes)
    if carries >= IDLE:
        return None
    names = {rank: one.newest.name for rank, one in peers.items()}
    return Spare(link.kind, names, min(capacity_of(one.newest) for one in peers.values()), carries)


def _peer(rank: RankAccount, link: Link) -> Carried | None:
    """The fastest link of a rank that is up and reaches ``link``."""
    there = [one for one in rank.links.values() if one.newest.up and _joined(one.newest, link)]
    return max(there, key=lambda one: capacity_of(one.newest), default=None)


def _joined(one: Link, other: Link) -> bool:
    """Whether two links are in the same network. Ports without addresses count as joined."""
    networks = _network(one), _network(other)
    if one.kind != other.kind or one.kind == "node":
        return False
    return networks[0] == networks[1] and (one.kind == "rdma" or networks[0] is not None)


def _network(link: Link) -> object:
    try:
        return ip_interface(link.address).network if link.address else None
    except ValueError:
        return None
