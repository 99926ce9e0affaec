"""The kinds of values that settings can have. They serve as types and as checks."""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple


class Number(NamedTuple):
    """A number from ``least`` to ``most``, both included."""

    least: float
    most: float = float("inf")

    def wrong(self, value: Any) -> str:
        """What is wrong with a value; empty if nothing is."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number, not {value!r}"
        if not self.least <= value <= self.most:
            bounds = f"at least {self.least:g}" if self.most == float("inf") else f"{self.least:g} to {self.most:g}"
            return f"must be {bounds}, not {value!r}"
        return ""


class Text(NamedTuple):
    """Text that matches a regular expression. ``says`` describes it in an error message."""

    pattern: str
    says: str

    def wrong(self, value: Any) -> str:
        """What is wrong with a value; empty if nothing is."""
        if not isinstance(value, str):
            return f"must be a string, not {value!r}"
        return "" if re.fullmatch(self.pattern, value) else f"must be {self.says}, not {value!r}"


class Expression(Text):
    """Text with regular expressions: all of it, or the values of its matchers with =~ and !~."""

    def wrong(self, value: Any) -> str:
        """What is wrong with a value; empty if nothing is."""
        if says := super().wrong(value):
            return says
        found = [text for _, text in re.findall(r'(=|!)~"((?:[^"\\]|\\.)*)"', value)]
        for expression in found if '"' in value else [value]:
            if "(?=" in expression or "(?!" in expression or "(?<" in expression:
                return f"has a lookaround, which Prometheus does not know, in {expression!r}"
            try:
                re.compile(re.sub(r"\\\\.", "x", expression))  # escapes differ between Python and RE2
            except re.error as error:
                return f"has an invalid regular expression, {expression!r}: {error}"
        return ""


DURATION = r"[1-9][0-9]{0,3}[dw]|[1-9][0-9]{0,5}[smh]"
"""Prometheus refuses durations of more than 292 years."""
_MATCHER = r'[A-Za-z_][A-Za-z0-9_]*(=|!=|=~|!~)"([^"\\\n]|\\["\\])*"'
"""Prometheus refuses other escapes, such as \\d."""

Share = Annotated[float, Number(0, 1)]
Amount = Annotated[float, Number(0)]
Multiple = Annotated[float, Number(1)]
Duration = Annotated[str, Text(DURATION, "a Prometheus duration of one unit, such as 30s, 5m or 1h")]
Wait = Annotated[str, Text(rf"0s|{DURATION}", "a Prometheus duration of one unit, such as 0s, 5m or 1h")]
Label = Annotated[str, Text(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a label: letters, digits and _")]
Selector = Annotated[
    str,
    Expression(rf"({_MATCHER}(, ?{_MATCHER})*)?", r'matchers such as job="whyidle", or empty, with \\ for a backslash'),
]
Url = Annotated[str, Text(r"https?://[^\s\"'{}]+[^\s\"'{}/]", "a URL that begins with https:// and does not end in /")]
UrlOrNone = Annotated[str, Text(r"(https?://[^\s\"'{}]+[^\s\"'{}/])?", "a URL that does not end in /, or empty")]
Pattern = Annotated[str, Expression(r"[^\"\\\n]+", "a regular expression without quotes and backslashes")]
Word = Annotated[str, Text(r"[^\"\\\n{}]*", "short text without quotes, backslashes and braces")]
Severity = Annotated[str, Text(r"critical|warning|info", "critical, warning or info")]
