"""The order in which pairs are measured, and which node or link is slow. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high

Pair = tuple[int, int]

LEAST_LOSS = 0.2
"""A node or link counts as slow only if it is slower than usual by more than this share."""
DEVIATIONS = 4.0
"""A node or link counts as slow only if it is further than this many standard deviations from the usual rate."""
_TO_SIGMA = 1.4826
"""The standard deviation of a normal distribution / its median absolute deviation."""
_MOST_OF_PAIRS = 0.75
"""A node counts as slow only if at least this share of its pairs is slow."""


def rounds(count: int) -> Iterator[list[Pair]]:
    """Yields all pairs of ``count`` members in as few rounds as possible. In a round, each member is in at most one
    pair.

    This is the circle method of round-robin tournaments. An even count takes count − 1 rounds. An odd count takes count
    rounds, and one member is left out of each.
    """
    players = [*range(count), *([-1] if count % 2 else [])]
    half = len(players) // 2
    for _ in range(len(players) - 1):
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in pairs if -1 not in pair]
        players[1:] = [players[-1], *players[1:-1]]


def one_at_a_time(count: int) -> Iterator[list[Pair]]:
    """Yields the same pairs in the same order, but one pair per round."""
    for pairs in rounds(count):
        yield from ([pair] for pair in pairs)


def number_of_pairs(count: int) -> int:
    return count * (count - 1) // 2


@dataclass(frozen=True)
class Findings:
    """Which nodes and links are slow. Rates have the unit of the measured rates."""

    usual: float
    """The median over nodes of each node's median over its pairs."""
    threshold: float
    """Rates below this are slow."""
    nodes: dict[int, float]
    """Node that is slow in most of its pairs -> its median rate."""
    links: dict[Pair, float]
    """Slow link between two nodes that are not slow -> its rate."""


def judge(rates: Mapping[Pair, float]) -> Findings | None:
    """Finds slow nodes and links. Returns None for fewer than three pairs, which are too few to compare.

    The rate of a node is the median over its pairs, so that one slow link does not make two nodes slow. Nodes are
    compared by the median and the median absolute deviation over nodes. This finds slow nodes as long as fewer than
    half of a fast node's peers are slow. Links are compared among the pairs of nodes that are not slow. If a node has
    only one measured pair, the link may be called slow, but not the node.
    """
    if len(rates) < 3:
        return None
    of_node: dict[int, list[float]] = {}
    for pair, rate in rates.items():
        for node in pair:
            of_node.setdefault(node, []).append(rate)
    medians = {node: median_high(found) for node, found in of_node.items()}
    usual = median(medians.values())
    threshold = _threshold(usual, list(medians.values()))
    nodes = {
        node: rate
        for node, rate in sorted(medians.items())
        if rate < threshold and len(of_node[node]) > 1 and _share_below(of_node[node], threshold) >= _MOST_OF_PAIRS
    }
    others = {pair: rate for pair, rate in rates.items() if not nodes.keys() & set(pair)}
    threshold_of_links = _threshold(usual, list(others.values()))
    links = {pair: rate for pair, rate in sorted(others.items()) if rate < threshold_of_links}
    return Findings(usual, min(threshold, threshold_of_links), nodes, links)


def _threshold(usual: float, rates: Sequence[float]) -> float:
    if not rates:
        return (1 - LEAST_LOSS) * usual
    middle = median(rates)
    sigma = _TO_SIGMA * median(abs(rate - middle) for rate in rates)
    return min((1 - LEAST_LOSS) * usual, usual - DEVIATIONS * sigma)


def _share_below(rates: Sequence[float], threshold: float) -> float:
    return sum(rate < threshold for rate in rates) / len(rates)
