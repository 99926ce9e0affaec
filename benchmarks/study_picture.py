"""Draws the picture of a study: the time of a step in each run, by family. SVG, readable on dark and light pages."""

from __future__ import annotations

from html import escape

from whyidle.advisor.compare.comparison import Comparison
from whyidle.cli.quantities import in_time
from whyidle.dashboards.colours import FAMILY_COLOUR
from whyidle.ledger.causes import FAMILIES

WIDTH, LEFT, RIGHT = 860, 130, 90
ROW, BAR, TOP = 34, 22, 44
_STYLE = (
    "text { font: 13px system-ui, sans-serif; fill: #1b1f24 } .paper { fill: #fff } "
    "@media (prefers-color-scheme: dark) { text { fill: #e8eaed } .paper { fill: #16181c } }"
)


def draw(found: Comparison) -> str:
    """The picture (SVG text), with a bar for each run in their order."""
    first = {row.name: row.before or 0.0 for pair in found.pairs for row in pair.families}
    bars = [(found.runs[0].name, first)]
    bars += [(pair.name, {row.name: row.after or 0.0 for row in pair.families}) for pair in found.pairs]
    longest = max(sum(spent.values()) for _, spent in bars) or 1.0
    height = TOP + ROW * len(bars) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Seconds of a step by family, for each run"><style>{_STYLE}</style>',
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        *_key([family for family in FAMILIES if any(spent.get(family, 0.0) > longest / 500 for _, spent in bars)]),
    ]
    for place, (name, spent) in enumerate(bars):
        y = TOP + ROW * place
        parts.append(f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        x = float(LEFT)
        for family in FAMILIES:
            wide = max(0.0, spent.get(family, 0.0)) / longest * (WIDTH - LEFT - RIGHT)
            if wide > 0:
                parts.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{BAR}" fill="{FAMILY_COLOUR[family]}">'
                    f"<title>{family} {in_time(spent[family])}</title></rect>"
                )
            x += wide
        parts.append(f'<text x="{x + 8:.1f}" y="{y + 16}">{in_time(sum(spent.values()))}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _key(families: list[str]) -> list[str]:
    parts, x = [], LEFT
    for family in families:
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{FAMILY_COLOUR[family]}"/>')
        parts.append(f'<text x="{x + 17}" y="22">{family}</text>')
        x += 34 + 7 * len(family)
    return parts
