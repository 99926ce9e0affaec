"""Colours: one per family, the same everywhere, and few others. Okabe and Ito's, which colour-blind eyes tell apart.

Source: M. Okabe and K. Ito, Color Universal Design (2008). Their black is grey here, to be seen on a dark ground too.
"""

from __future__ import annotations

from ..alerts.recording.contradictions import CONTRADICTIONS
from ..ledger.causes import CAUSE_FAMILY, FAMILIES, PHASES

ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
RED = "#D55E00"
PINK = "#CC79A7"
GREY = "#999999"
WINE = "#882255"
LAVENDER = "#A79FE1"
"""Okabe and Ito have eight colours. Wine is from Paul Tol's scheme "muted"; lavender is lighter than their blue."""
FAINT = "#66666640"
"""For what is as it should be and wants no attention."""

INFERNO = (
    *("#140B34", "#320A5E", "#4B0C6B", "#781C6D", "#A52C60"),
    *("#CF4446", "#ED6925", "#FB9A06", "#F7D03C", "#FCFFA4"),
)
"""From dark to bright, for heat: even steps to colour-blind eyes too, and no green, which is compute's.

Source: matplotlib's inferno, without its black, which on a dark ground would look like nothing.
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
UNHOOKED = "#505050"
"""GPUs of which nothing is known: beside the families, and none of them."""

CAUSE_SHADES: dict[str, str] = {
    "compute": "#009E73",
    "recompute": "#D55E00",
    "data_read": "#E69F00",
    "data_cpu": "#F0E442",
    "data_queue": "#B8AC1C",
    "data_handoff": "#56B4E9",
    "network": "#0072B2",
    "straggler": "#CC79A7",
    "collective": LAVENDER,
    "collective_queue": "#8F8620",
    "pipeline": WINE,
    "checkpoint_write": "#A66F00",
    "checkpoint_cpu": "#F7F0A0",
    "checkpoint_read": "#FFC84D",
    "host": "#2F86B5",
    "host_gc": "#9AD3F5",
    "host_compile": "#1B5E85",
    "host_blocked": "#6FA3BF",
    "startup": "#BFE4FA",
    "unattributed": "#999999",
}
"""Cause -> a shade of its family's colour."""

PHASE_COLOUR: dict[str, str] = {
    "startup": "#BFE4FA",
    "compute": GREEN,
    "eval": "#7BD3B4",
    "host": SKY,
    "data": ORANGE,
    "data_start": "#9AD3F5",
    "collective": LAVENDER,
    "checkpoint": "#A66F00",
    "restore": "#FFC84D",
    "gc": PINK,
    "compile": GREY,
}
"""Phase -> the colour of what it mostly is. An open wait for data or in a collective has no cause yet."""

assert PHASE_COLOUR.keys() == set(PHASES)
assert FAMILY_COLOUR.keys() == set(FAMILIES)
assert CAUSE_SHADES.keys() == CAUSE_FAMILY.keys()

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
"""Family -> the verdict in words."""

CORROBORATION_WORDS: dict[str, tuple[str, str]] = {
    "confirmed": ("counters agree", GREEN),
    "unconfirmed": ("counters silent", ORANGE),
    "none_needed": ("needs none", GREY),
}
"""Label corroboration -> words and colour."""

CONTRADICTION_WORDS: dict[str, tuple[str, str]] = {
    "idle_links": ("links idle, CPUs queued", RED),
    "idle_storage": ("storage idle", RED),
    "idle_cpus": ("CPUs idle", RED),
    "busy_gpus": ("GPUs busy", RED),
}
"""Label contradiction -> what a counter says against the verdict, and its colour."""
assert CONTRADICTION_WORDS.keys() == CONTRADICTIONS.keys()
