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


def moved_link(name: str, report: Report, other: str, first: Report) -> list[str]:
    """A sentence about the run ``name``, compared with the first run, which is called ``other``.

    Only if a verdict names a link: otherwise it does not matter.
    """
    before, after = _link(first), _link(report)
    named = any((each.get("verdict") or {}).get("links") for each in (first, report))
    if not named or before is None or after is None or before.name == after.name:
        return []
    return [f"{name}: transfers moved from {before.text} to {after.text} since {other}"]


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
