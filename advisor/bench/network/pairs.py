"""Which pairs are measured when, and which node or link is slow. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high

Pair = tuple[int, int]

LEAST_LOSS = 0.2
"""What is slower by less than this is not called slow."""
DEVIATIONS = 4.0
"""Nor is what lies within so many standard deviations of the rest."""
_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation / its median absolute deviation."""
_MOST_OF_PAIRS = 0.75
"""A node is slow if so many of its pairs are."""


def rounds(count: int) -> Iterator[list[Pair]]:
    """All pairs of ``count`` in as few rounds as can be, each in at most one pair of a round: the circle method of
    round-robin tournaments. count − 1 rounds; with an odd count as many as that, and one is left out of each."""
    players = [*range(count), *([-1] if count % 2 else [])]
    half = len(players) // 2
    for _ in range(len(players) - 1):
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in pairs if -1 not in pair]
        players[1:] = [players[-1], *players[1:-1]]


def one_at_a_time(count: int) -> Iterator[list[Pair]]:
    """The same pairs in the same order, each in a round of its own."""
    for pairs in rounds(count):
        yield from ([pair] for pair in pairs)


def number_of_pairs(count: int) -> int:
    return count * (count - 1) // 2


@dataclass(frozen=True)
class Findings:
    """Rates in the unit of what was measured."""

    usual: float
    """The median over nodes of the median over the pairs of each."""
    threshold: float
    """What is below it is slow."""
    nodes: dict[int, float]
    """Slow in most of their pairs -> their median rate."""
    links: dict[Pair, float]
    """Slow between two nodes neither of which is slow otherwise -> their rate."""


def judge(rates: Mapping[Pair, float]) -> Findings | None:
    """Which nodes and links are slow; None where there are fewer than three pairs: one cannot tell then.

    A node's rate is the median over its pairs, so that one slow link does not make two nodes slow. Nodes are compared
    by the median and the median absolute deviation over nodes: this finds slow nodes as long as fewer than half of a
    sound node's peers are slow. Links are compared among the pairs of nodes that are not slow. A node with one measured
    pair is never called slow, but the link is.
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
