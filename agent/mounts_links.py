"""The counters of mounts and links in ledgers: what the ranks of a run on this node did there, and what is possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ..ledger.links import SHAPERS, Link
from ..ledger.mounts import LIMITS, Mount
from ..ledger.reader import Ledger
from .group_sums import added
from .metrics.links import LINK_LIMIT, LINK_RANKS, LINK_SPEED
from .metrics.metric import Metric
from .metrics.mounts import MOUNT_LIMIT
from .reading import Labels

MOST_MOUNTS, MOST_LINKS = 16, 32
"""How many of them the sums of a run on this node may have. Ledgers are untrusted input."""
OTHER_MOUNTS, OTHER_LINKS = ("other", ""), ("", "other")

Labelled = dict[Labels, tuple[int, ...]]


def of_mount(mount: Mount) -> tuple[int, ...]:
    """One value per series of metrics.mounts.MOUNT_SUMS."""
    moved, measured = mount.bytes, mount.measured_ns
    blocked = mount.data_ns, mount.save_ns, mount.own_ns
    return (*blocked, moved, 0, measured, 0) if mount.counted else (*blocked, 0, moved, 0, measured)


def of_link(link: Link) -> tuple[int, ...]:
    """One value per series of metrics.links.LINK_SUMS."""
    return link.received, link.sent, link.wait_bytes, link.wait_ns, link.segments, link.resent


def add_mounts(sums: Labelled, ledger: Ledger) -> Labelled:
    """``sums``, by mount point and type of the file system, plus the counters of one more ledger."""
    return added(sums, ((_mount(mount), of_mount(mount)) for mount in ledger.mounts), MOST_MOUNTS, OTHER_MOUNTS)


def add_links(sums: Labelled, ledger: Ledger) -> Labelled:
    """``sums``, by kind and name of the link, plus the counters of one more ledger."""
    return added(sums, ((_link(link), of_link(link)) for link in ledger.links), MOST_LINKS, OTHER_LINKS)


def of_now(ledgers: Iterable[Ledger], mounts: Labelled, links: Labelled) -> dict[tuple[Metric, Labels], float]:
    """The limits of mounts, the speeds and limits of links, and how many ranks share a link, by metric and labels.

    The lowest rate of the ranks counts. ``mounts`` and ``links`` are the sums, which are bounded: mounts and links that
    are not in them are left out.
    """
    lowest: dict[tuple[Metric, Labels], float] = {}
    ranks: Counter[tuple[Metric, Labels]] = Counter()
    for ledger in ledgers:
        known_mounts = [mount for mount in ledger.mounts if _mount(mount) in mounts]
        known_links = [link for link in ledger.links if _link(link) in links]
        for metric, labels, rate in _possible(known_mounts, known_links):
            key = metric, labels
            lowest[key] = min(rate, lowest.get(key, rate))
        ranks.update((LINK_RANKS, _link(link)) for link in known_links if link.wait_ns or _has_pairs(link))
    return lowest | ranks


def _possible(mounts: Iterable[Mount], links: Iterable[Link]) -> Iterator[tuple[Metric, Labels, float]]:
    for mount in mounts:
        if mount.limit:
            yield MOUNT_LIMIT, (*_mount(mount), _named(LIMITS, mount.limit_by)), mount.limit
    for link in links:
        if link.speed and (link.up or link.carried):
            yield LINK_SPEED, _link(link), LINK_SPEED.base(link.speed)
        if link.limit:
            yield LINK_LIMIT, (*_link(link), _named(SHAPERS, link.limit_by)), LINK_LIMIT.base(link.limit)


def _has_pairs(link: Link) -> bool:
    return link.kind == "rdma" and link.connections > 0


def _mount(mount: Mount) -> Labels:
    return mount.point, mount.fstype


def _link(link: Link) -> Labels:
    return link.kind, link.name


def _named(names: tuple[str, ...], index: int) -> str:
    return names[index] if index < len(names) else ""
