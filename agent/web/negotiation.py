"""Negotiates the content type and the encoding of answers. RFC 9110, sections 12.5.1 and 12.5.3."""

from __future__ import annotations

from collections.abc import Iterator

OPENMETRICS = "application/openmetrics-text"
TEXT = ("text/plain", "text/*", "*/*")
"""The ranges that match the text format, the most specific first."""


def wants_openmetrics(accept: str) -> bool:
    """Whether the client accepts OpenMetrics 1.0.0 and does not prefer the text format."""
    openmetrics, plain = 0.0, {}
    for name, options, weight in _choices(accept):
        if name == OPENMETRICS and options.get("version", "1.0.0") == "1.0.0":
            openmetrics = max(openmetrics, weight)
        elif name in TEXT and options.get("version", "0.0.4") == "0.0.4":
            plain[name] = weight
    best_plain = next((plain[name] for name in TEXT if name in plain), 0.0)
    return openmetrics > 0 and openmetrics >= best_plain


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the client accepts gzip. ``gzip;q=0`` means that it does not."""
    weights = {name: weight for name, _, weight in _choices(accept_encoding)}
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _choices(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """The entries of a header with weights: (name, options, weight from 0 to 1)."""
    for entry in header.split(","):
        name, *rest = (part.strip() for part in entry.split(";"))
        if name:
            options = {
                key.strip().lower(): value.strip(' "') for key, _, value in (part.partition("=") for part in rest)
            }
            yield name.lower(), options, _weight(options.pop("q", "1"))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0
