"""How values are shown: units, thresholds, words, and links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..alerts.recording.names import NOTEBOOKS
from .colours import AMBER, BILL_COLOUR, FAMILY_COLOUR, GREEN, RED, VERDICT_COLOUR, VERDICTS

Json = dict[str, Any]
Unit = Literal[
    "short",  # a count
    "locale",  # a count with all its digits
    "percentunit",  # a ratio from 0 to 1
    "s",
    "bytes",
    "Bps",
    "bps",  # bits
    "ops",  # per second
    "pps",
    "hertz",
    "celsius",
    "watt",
    "joule",
    "bool",
    "none",
    "string",
    "count:GPU-h",
    "count:GPUs",
    "dateTimeFromNow",  # ms since 1970
    "currency:⟦currency⟧",
]
MONEY: Unit = "currency:⟦currency⟧"
"""The unit for money, in the currency of the settings."""

Step = tuple[float | None, str]


def steps(*bounds: float) -> tuple[Step, ...]:
    """Thresholds: green below the first bound, then amber, and red from the second (or only) bound on."""
    return ((None, GREEN), *zip(bounds, (AMBER, RED)[-len(bounds) :], strict=True))


def falling(*bounds: float) -> tuple[Step, ...]:
    """Thresholds: red below the first bound, then amber, and green from the second (or only) bound on."""
    return ((None, RED), *zip(bounds, (AMBER, GREEN)[-len(bounds) :], strict=True))


GOOD = falling(0.5, 0.8)
"""Thresholds of goodput: below 0.5, most of the device time is lost; above 0.8, there is little to gain."""


def words(table: Mapping[Any, tuple[str, str] | str]) -> list[Json]:
    """A value mapping. ``table``: value -> words and a colour, or only words."""
    options: Json = {}
    for index, (value, shown) in enumerate(table.items()):
        text, colour = (shown, None) if isinstance(shown, str) else shown
        options[str(value)] = {"text": text, "index": index} | ({"color": colour} if colour else {})
    return [{"type": "value", "options": options}]


SHORT = {"lost": "repeated steps", NOTEBOOKS: "notebook waits"}
"""Family -> a clearer name where the family's own name says too little."""
_SHORT = {family: (SHORT.get(family, family), VERDICT_COLOUR[family]) for family in VERDICTS}
FAMILY = words(_SHORT | {NOTEBOOKS: (SHORT[NOTEBOOKS], BILL_COLOUR[NOTEBOOKS])})
"""Shows a family by its short name, for tables."""
LATE_BY = words(_SHORT | {"straggler": ("compute", FAMILY_COLOUR["straggler"])})
"""Shows a family as the reason why a rank was late. Here `straggler` means that its own compute was slow."""
FAMILY_WIDTH = 130
"""The width of a column with a family."""


@dataclass(frozen=True)
class Link:
    """A link from a value. ``url`` may contain Grafana's variables."""

    title: str
    url: str


KEPT = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
"""The URL parameters that links between dashboards keep: time range, data source and cluster."""


def to_run() -> Link:
    """A link from a table cell with a run to that run. The row must have the owner too."""
    return _to("run", "${__value.text:percentencode}", "&var-owner=${__data.fields.owner:percentencode}")


def to_node() -> Link:
    """A link from a table cell with a node to that node."""
    return _to("node", "${__value.text:percentencode}")


def series_to(variable: Literal["run", "node"]) -> Link:
    """A link from a series with the label `run` or `node` to that run or node."""
    owner = "&var-owner=${__field.labels.owner:percentencode}" if variable == "run" else ""
    return _to(variable, f"${{__field.labels.{variable}:percentencode}}", owner)


def _to(variable: str, value: str, more: str = "") -> Link:
    return Link(f"This {variable}", f"/d/whyidle-{variable}?var-{variable}={value}{more}&{KEPT}")


def threshold_steps(thresholds: Sequence[Step]) -> list[Json]:
    """Thresholds in Grafana's JSON."""
    return [{"color": colour, "value": value} for value, colour in thresholds]


def data_links(links: Iterable[Link]) -> list[Json]:
    """Links in Grafana's JSON."""
    return [{"title": link.title, "url": link.url, "targetBlank": False} for link in links]
