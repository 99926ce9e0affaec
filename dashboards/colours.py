"""Colours: one per family, the same on all dashboards, and a few others.

The colours of any two families differ by 10 or more in CIEDE2000, for normal vision and for each kind of colour
blindness (protanopia, deuteranopia, tritanopia). Each has a contrast of 3 or more with Grafana's dark and light panels,
so none is as dark as navy or as bright as yellow. A search found them: ten colours, each of a hue that fits its family,
with the largest possible minimum distance. tests/dashboards/test_colours.py checks both conditions. The output
pass darkens colours behind words.
"""

from __future__ import annotations

from ..alerts.recording.contradictions import CONTRADICTIONS
from ..alerts.recording.names import NOTEBOOKS
from ..ledger.cause_rows import CAUSE_ROWS, PHASE_ROWS
from ..ledger.causes import FAMILIES
from ..verdict.shortage import SHORTAGES
from ..verdict.unused import HEADLINE
from .contrast import shaded

GREEN = "#147850"
ORANGE = "#FA4600"
BLUE = "#3C50FA"
PINK = "#E65A96"
WINE = "#BE0AA0"
LAVENDER = "#8C8CDC"
YELLOW = "#8C965A"
SKY = "#28A0A0"
RED = "#D20000"
GREY = "#5A6E6E"
"""YELLOW is an olive and SKY a teal, because brighter colours are hard to see on a light panel."""
AMBER = "#C08A30"
"""For values between good and bad. It is not the colour of a family."""
FAINT = "#66666640"
"""For normal states, which need no attention."""

INFERNO = (
    *("#140B34", "#320A5E", "#4B0C6B", "#781C6D", "#A52C60"),
    *("#CF4446", "#ED6925", "#FB9A06", "#F7D03C", "#FCFFA4"),
)
"""A scale from dark to bright, for heat maps. Its steps look even to colour-blind people too, and it has no green, the
colour of compute.

Source: matplotlib's inferno, without its black, which cannot be seen on a dark panel.
"""

FAMILY_COLOUR: dict[str, str] = {
    "compute": GREEN,
    "storage": ORANGE,
    "network": BLUE,
    "straggler": PINK,
    "pipeline": WINE,
    "communication": LAVENDER,
    "cpu": YELLOW,
    "host": SKY,
    "lost": RED,
    "unattributed": GREY,
}
UNHOOKED = "#8A8A8A"
"""For GPUs that no rank uses, which are shown beside the families and belong to none of them."""


def _shade(family: str, light: float) -> str:
    return FAMILY_COLOUR[family] if light == 1 else shaded(FAMILY_COLOUR[family], light)


CAUSE_SHADES: dict[str, str] = {row.name: _shade(row.family, row.shade) for row in CAUSE_ROWS}
"""Cause -> a shade of its family's colour."""
BILL_COLOUR: dict[str, str] = {**FAMILY_COLOUR, NOTEBOOKS: CAUSE_SHADES["interactive"]}
"""Family on a bill -> its colour."""

PHASE_COLOUR: dict[str, str] = {
    row.name: _shade(*row.colour) if row.colour else CAUSE_SHADES[row.cause] for row in PHASE_ROWS
}
"""Phase -> the colour of its usual family. An open wait for data or in a collective has no cause yet."""

assert FAMILY_COLOUR.keys() == set(FAMILIES)

FAMILY_WORDS: dict[str, str] = {
    "compute": "Computing",
    "storage": "Storage: reads or checkpoints",
    "network": "Network: the transfers themselves",
    "straggler": "A slow rank makes the others wait",
    "pipeline": "Pipeline: stages wait for one another",
    "communication": "Communication: waits that could not be split",
    "cpu": "CPU: data workers, communication threads",
    "host": "Host: the loop's own Python",
    "lost": "Repeating steps after a restart",
    "unattributed": "Unexplained",
}
"""Family -> words for a verdict that names it."""

VERDICT_COLOUR: dict[str, str] = {**FAMILY_COLOUR, HEADLINE: UNHOOKED}
VERDICT_WORDS: dict[str, str] = {**FAMILY_WORDS, HEADLINE: "Unused: it trains on the CPU beside its GPUs"}
"""The same for all verdicts."""
VERDICTS: tuple[str, ...] = (*FAMILIES, HEADLINE)

CONTRADICTION_WORDS: dict[str, tuple[str, str]] = {
    "idle_links": ("links idle, CPUs queued", RED),
    "idle_storage": ("storage idle", RED),
    "idle_cpus": ("CPUs idle", RED),
    "busy_gpus": ("GPUs busy", RED),
}
"""Label contradiction -> words for what the counter says against the verdict, and their colour."""
assert CONTRADICTION_WORDS.keys() == CONTRADICTIONS.keys()

SHORTAGE_LABELS: dict[str, tuple[str, str]] = {
    "stolen": ("hypervisor took CPUs", AMBER),
    "queued": ("queued for CPUs", AMBER),
}
"""Label shortage -> words for the CPU time that ranks lacked, which may be the reason for the verdict."""
assert SHORTAGE_LABELS.keys() == SHORTAGES.keys()
