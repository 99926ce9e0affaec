"""Words of links for ledgers in tests."""

from __future__ import annotations

from typing import Any

from whyidle.ledger.links import SHAPERS

GBIT = 1_000_000_000
Words = dict[str, Any]


def interface(number: int, node: int, gbits: float = 10, **words: Any) -> Words:
    """`eth<number>` of a node, up and without traffic. All interfaces of the same number are in one network."""
    link = f"tcp eth{number} 10.23{number}.0.{node + 1}/24"
    return {"link": link, "up": 1, "speed": int(gbits * GBIT), "mtu": 1500} | words


def used(gbits: float, seconds: float = 4, **words: Any) -> Words:
    """What looks in waits saw on a link that carries the transfers."""
    size = int(gbits * GBIT / 8 * seconds)
    return {
        "sent": size,
        "received": size,
        "all": 2 * size,
        "wait_bytes": size,
        "wait_ns": int(seconds * GBIT),
        "busy_ns": int(seconds * GBIT),
        "best": int(1.02 * gbits * GBIT),
        "segments": size // 1000,
    } | words


def limited(gbits: float, by: str = "tbf") -> Words:
    return {"limit": int(gbits * GBIT), "limit_by": SHAPERS.index(by)}
