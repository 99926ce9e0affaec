"""Whether the transfers of a run use another link than those of another run. Pure functions."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from ...verdict.link_words import rate_text
from ...verdict.saved import Report


class _Link(NamedTuple):
    name: str
    rate: float | None
    """Bits a second, of the median rank."""

    @property
    def text(self) -> str:
        return f"{self.name} ({rate_text(self.rate)})" if self.rate else self.name


def moved(name: str, first: Report, other: Report, first_name: str) -> list[str]:
    """A sentence if most bytes moved over another link, and if a verdict names a link: otherwise it does not matter."""
    before, after = _link(first), _link(other)
    named = any((report.get("verdict") or {}).get("links") for report in (first, other))
    if not named or before is None or after is None or before.name == after.name:
        return []
    return [f"{name}: transfers moved from {before.text} to {after.text} since {first_name}"]


def _link(report: Report) -> _Link | None:
    """The link that moved most bytes between nodes, or inside a node if nothing left it."""
    links = [link for rank in report["per_rank"] for link in rank.get("links") or ()]
    links = [link for link in links if link["kind"] != "node"] or links
    sizes: dict[str, float] = {}
    for link in links:
        sizes[link["link"]] = sizes.get(link["link"], 0.0) + link["bytes"]
    if not sizes:
        return None
    name = max(sizes, key=lambda name: sizes[name])
    rates = [rate for link in links if link["link"] == name and (rate := link["bits_per_second"])]
    return _Link(name, median(rates) if rates else None)
