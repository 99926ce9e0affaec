"""Tables whose columns come from several instant queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .colours import BLUE, GREEN
from .library import Panel, Target, core
from .panels import PLAIN, common, more, override
from .values import Json, Link, Step, Unit, data_links, threshold_steps

MERGED: tuple[Json, ...] = (
    # Grafana merges rows that agree in all fields that all answers have. So leave out the name of recorded series.
    {"id": "filterFieldsByName", "options": {"exclude": {"names": ["__name__"]}}},
    {"id": "merge", "options": {}},
)
GROUND: dict[str, Sequence[Step]] = {"gauge": ((None, BLUE),), "color-background": ((None, "transparent"),)}
"""Kind of cell -> the default colour of its values."""


EMPTY_CELL = override(".*", {"id": "noValue", "value": "–"}, matcher="byRegexp")


@dataclass(frozen=True)
class Column:
    """A column of a table. ``field`` is a label, or the letter of the query that has its values: A for the first."""

    field: str
    title: str
    unit: Unit = "string"
    width: int | None = None
    thresholds: Sequence[Step] = ()
    mappings: Sequence[Json] = ()
    cell: Literal["auto", "color-text", "color-background", "gauge"] = "auto"
    most: float | None = None
    decimals: int | None = None
    link: Link | None = None


def table(
    title: str,
    description: str,
    *queries: Target,
    columns: Sequence[Column],
    sort: str = "",
    width: int = 24,
    rising: bool = False,
    nothing: str = "–",
) -> Panel:
    """A table of instant queries (made with :func:`now`). Results with the same labels are merged into one row.

    ``sort`` is the title of the column to sort by, highest first, or lowest first with ``rising``. ``nothing`` is shown
    if there are no rows.
    """
    names = [_value_field(column.field, queries) for column in columns]
    for target in queries:
        target.format = core.TABLE_TARGET_FORMAT
    transformations = [
        *(MERGED if len(queries) > 1 else ()),
        {"id": "filterFieldsByName", "options": {"include": {"names": names}}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {},
                "indexByName": {name: index for index, name in enumerate(names)},
                "renameByName": {name: column.title for name, column in zip(names, columns, strict=True)},
            },
        },
    ]
    return core.Table(
        **common(title, description, queries, width, PLAIN),
        sortBy=[core.TableSortByField(sort, not rising)] if sort else [],
        transformations=transformations,
        overrides=[EMPTY_CELL, *(override(column.title, *_column(column)) for column in columns)],
        unit="short",
        filterable=True,
        extraJson=more({"noValue": nothing, "color": {"mode": "thresholds"}}, options={"cellHeight": "sm"}),
    )


def _value_field(name: str, queries: Sequence[Target]) -> str:
    if len(name) > 1 or not name.isupper():
        return name
    return "Value" if len(queries) == 1 else f"Value #{name}"


def _column(column: Column) -> list[Json]:
    bounds = column.thresholds or GROUND.get(column.cell, ())
    if column.cell == "color-background":  # good values have no background
        bounds = [(bound, "transparent" if colour == GREEN else colour) for bound, colour in bounds]
    properties: Json = {
        "unit": column.unit,
        "decimals": column.decimals,
        "custom.width": column.width,
        "max": column.most,
        "min": 0 if column.most is not None or column.cell == "gauge" else None,
        "mappings": list(column.mappings) or None,
        "thresholds": {"mode": "absolute", "steps": threshold_steps(bounds)} if bounds else None,
        "custom.cellOptions": _cell(column) if column.cell != "auto" else None,
        "links": data_links([column.link]) if column.link else None,
    }
    return [{"id": name, "value": value} for name, value in properties.items() if value is not None]


def _cell(column: Column) -> Json:
    return {"type": column.cell, "mode": "basic"} if column.cell != "color-text" else {"type": column.cell}
