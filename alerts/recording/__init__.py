"""The recording rules, one module per topic. A module may use what the modules before it recorded."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import Config
from ..rule import Group, Record
from . import (
    bandwidth,
    bills,
    books,
    contradictions,
    corroboration,
    hours,
    mounts_links,
    rank_books,
    ranks,
    shares,
    shortages,
    stragglers,
    traffic,
    verdict,
)


def groups(config: Config) -> list[Group]:
    """All recording rules, in the order in which they depend on each other."""
    return [
        # All in one group: sums over windows need to know when the values that they add were recorded.
        Group("whyidle-ranks", config.interval, tuple(_accounts(config))),
        Group("whyidle-rank-books", config.ranks_interval, rank_books.rules(config)),
        Group("whyidle-bandwidth", config.counters_interval, bandwidth.rules(config)),
        Group("whyidle-mounts-links", config.details_interval, mounts_links.rules(config)),
        Group("whyidle-traffic", config.counters_interval, traffic.rules(config)),
        Group("whyidle-evidence", config.details_interval, tuple(_evidence(config))),
        Group("whyidle-verdict", config.interval, tuple(_verdicts(config))),
        Group("whyidle-hours", hours.HOUR, hours.rules(config)),
    ]


def _accounts(config: Config) -> Iterator[Record]:
    yield from ranks.rules(config)
    yield from books.rules(config)
    for window in config.windows:
        yield from shares.rules(config, window)
        yield from verdict.basis(config, window)
        yield from stragglers.rules(config, window)
        yield from verdict.conclusion(config, window)
    yield from bills.rules(config)


def _evidence(config: Config) -> Iterator[Record]:
    """In one group, so that contradictions and shortages use the evidence of the same moment, and read it only once."""
    yield from shares.of_nodes(config)
    yield from bandwidth.links(config)
    yield from corroboration.rules(config)
    yield from contradictions.rules(config)
    yield rank_books.place(config)
    yield from shortages.rules(config)


def _verdicts(config: Config) -> Iterator[Record]:
    for window in config.windows:
        yield from verdict.rules(config, window)
