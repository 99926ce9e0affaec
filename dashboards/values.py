"""What values look like: units, thresholds, words, and where a click on them leads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..ledger.causes import FAMILIES
from .colours import AMBER, FAMILY_COLOUR, FAMILY_WORDS, GREEN, RED

Json = dict[str, Any]
Unit = Literal[
    "short",  # a count
    "locale",  # a count with all its digits
    "percentunit",  # a ratio from 0 to 1
    "s",
    "bytes",
    "Bps",
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
"""In the currency of the settings."""

Step = tuple[float | None, str]


def steps(*bounds: float) -> tuple[Step, ...]:
    """Good until the first bound, amber from there, red from the second on (or from the only one)."""
    return ((None, GREEN), *zip(bounds, (AMBER, RED)[-len(bounds) :], strict=True))


def falling(*bounds: float) -> tuple[Step, ...]:
    """Red until the first bound, amber from there, good from the second on (or from the only one)."""
    return ((None, RED), *zip(bounds, (AMBER, GREEN)[-len(bounds) :], strict=True))


GOOD = falling(0.5, 0.8)
"""Goodput: below half, most of the money goes elsewhere; above four fifths there is little to gain."""


def words(table: Mapping[Any, tuple[str, str] | str]) -> list[Json]:
    """Value -> what to show for it: words and a colour, or words alone."""
    options: Json = {}
    for index, (value, shown) in enumerate(table.items()):
        text, colour = (shown, None) if isinstance(shown, str) else shown
        options[str(value)] = {"text": text, "index": index} | ({"color": colour} if colour else {})
    return [{"type": "value", "options": options}]


VERDICTS = words({family: (FAMILY_WORDS[family], FAMILY_COLOUR[family]) for family in FAMILIES})
"""A family as a verdict says it."""
LATE_BY = words(
    {family: (FAMILY_WORDS[family], FAMILY_COLOUR[family]) for family in FAMILIES}
    | {"straggler": ("Compute: slow, or a larger batch", FAMILY_COLOUR["straggler"])}
)
"""A family as what made a rank late: by compute itself it is what makes a straggler."""


@dataclass(frozen=True)
class Link:
    """A link from a value; ``url`` may hold Grafana's variables."""

    title: str
    url: str


KEPT = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
"""What a link between dashboards keeps."""


def to_run() -> Link:
    """From a table's cell that holds a run to that run. The row has its owner too."""
    return _to("run", "${__value.text:percentencode}", "&var-owner=${__data.fields.owner:percentencode}")


def to_node() -> Link:
    """From a table's cell that holds a node to that node."""
    return _to("node", "${__value.text:percentencode}")


def series_to(variable: Literal["run", "node"]) -> Link:
    """From a series that has the label to what it names."""
    owner = "&var-owner=${__field.labels.owner:percentencode}" if variable == "run" else ""
    return _to(variable, f"${{__field.labels.{variable}:percentencode}}", owner)


def _to(variable: str, value: str, more: str = "") -> Link:
    return Link(f"This {variable}", f"/d/whyidle-{variable}?var-{variable}={value}{more}&{KEPT}")


def threshold_steps(thresholds: Sequence[Step]) -> list[Json]:
    """As Grafana has them."""
    return [{"color": colour, "value": value} for value, colour in thresholds]


def data_links(links: Iterable[Link]) -> list[Json]:
    """As Grafana has them."""
    return [{"title": link.title, "url": link.url, "targetBlank": False} for link in links]
