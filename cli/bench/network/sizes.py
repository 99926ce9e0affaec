"""Reads sizes from the command line: 64kB, 25MiB, 4MB or 1000, lists of sizes, and ranges such as 64kB..64MB."""

from __future__ import annotations

import argparse

from ....advisor.bench.network.operations import OPERATIONS, ladder
from ... import quantities

_MOST = 1 << 40
FACTOR = 4
"""The factor between two sizes of a range."""


def size(text: str) -> int:
    """Reads a size, in bytes. Like the other functions here, it raises argparse.ArgumentTypeError with a sentence."""
    found = quantities.size(text)
    if found > _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} must be at most 1 TiB: write 64kB, 25MiB or 4MB")
    return found


def sizes(text: str) -> tuple[int, ...]:
    """Reads a list of sizes and ranges, such as 1000,64kB..64MB. The result is in order."""
    found: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.partition("..")
        one, other = size(first), size(last if dots else first)
        if other < one:
            raise argparse.ArgumentTypeError(f"{part!r}: the second size must be the larger one")
        found.update(ladder(one, other, FACTOR))
    return tuple(sorted(found))


def operations(text: str) -> tuple[str, ...]:
    """Reads a list of operations, such as all_reduce,broadcast."""
    found = tuple(dict.fromkeys(part.strip().replace("-", "_") for part in text.split(",")))
    if unknown := [op for op in found if op not in OPERATIONS]:
        known = ", ".join(OPERATIONS)
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not an operation; the operations are {known}")
    return found
