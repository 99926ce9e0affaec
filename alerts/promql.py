"""PromQL expressions that several rules share, as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds(duration: str) -> int:
    """The seconds of a Prometheus duration of one unit, such as 5m. Raises ValueError for any other."""
    match = re.fullmatch(r"(\d+)([smhdw])", duration)
    if match is None:
        raise ValueError(f"{duration!r} is not a duration such as 30s, 5m or 1h")
    return int(match[1]) * _UNITS[match[2]]


def milliseconds(duration: int) -> str:
    """Milliseconds as a Prometheus duration of one unit."""
    return f"{duration}ms" if duration % 1000 else f"{duration // 1000}s"


def any_of(values: Iterable[str]) -> str:
    """A regular expression that matches any of the values. Special characters in them are not escaped."""
    return "|".join(sorted(values))


def relabel(expr: str, target: str, source: str, mapping: Mapping[str, str]) -> str:
    """Sets the label ``target`` to ``mapping[value of source]``. Samples with another value do not change."""
    for value in dict.fromkeys(mapping.values()):
        sources = any_of(key for key, of in mapping.items() if of == value)
        expr = f'label_replace({expr},\n"{target}", "{value}", "{source}", "{sources}")'
    return expr


def labelled(expr: str, label: str, value: str) -> str:
    """Sets a label on every sample."""
    return f'label_replace({expr}, "{label}", "{value}", "", "")'


def lines(*parts: str) -> str:
    """The union (`or`) of the parts, each on its own line."""
    return "\nor\n".join(parts)


def nested(*parts: str) -> str:
    """The union of the parts, in which only the first part takes part in a single `or`. Put the largest first.

    Prometheus writes down the labels of all series on both sides of each `or`.
    """
    *others, expr = parts
    for part in reversed(others):
        expr = f"{part}\nor (\n{indented(expr)}\n)"
    return expr


def indented(expr: str) -> str:
    return "\n".join(f"  {line}" for line in expr.splitlines())
