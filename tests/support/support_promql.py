"""The names in a PromQL expression, as far as a linter needs them. promtool checks that the expression is valid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
NAME = re.compile(r"(?<![\w:.$])[a-zA-Z_:][\w:]*")
WORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}
BRACES = re.compile(r"\{[^{}]*\}")
NAMED_BY_PATTERN = re.compile(r'__name__\s*=~?\s*"([^"]*)"')
TEXT = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')
WINDOW = re.compile(r"\s*\[([^\]:]*)\]")


@dataclass(frozen=True)
class Selector:
    """One selector: the metric's name, or a pattern of names, and the surrounding expression."""

    name: str
    matchers: str
    window: str
    inside: str  # the function or aggregation whose argument begins with it
    after: str  # the rest of the expression


def selectors(expr: str) -> Iterator[Selector]:
    """Every selector of an expression, in order."""
    plain = _blank_groupings(expr)
    masked = BRACES.sub(lambda found: " " * len(found[0]), TEXT.sub(lambda found: "_" * len(found[0]), plain))
    masked = re.sub(r"\[[^\]]*\]", lambda found: " " * len(found[0]), masked)
    for found in NAME.finditer(masked):
        rest = masked[found.end() :].lstrip()
        if found[0] in WORDS or rest.startswith("(") or set(found[0]) == {"_"} or found[0].lower() in ("inf", "nan"):
            continue
        matchers, after = _matchers(plain, found.end())
        yield Selector(found[0], matchers, _window(plain, after), _function(masked, found.start()), plain[after:])
    for found in re.finditer(r"(?<![\w:}])\s*(\{[^{}]*__name__[^{}]*\})", plain):
        named = NAMED_BY_PATTERN.search(found[1])
        start = found.start(1)
        inside, after = _function(masked, start), plain[found.end() :]
        yield Selector(named[1] if named else "", found[1], _window(plain, found.end()), inside, after)


def groupings(expr: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """by, without, on and so on, with the labels that follow."""
    for found in GROUPING.finditer(TEXT.sub('""', expr)):
        yield found[1], tuple(label.strip() for label in found[2].split(",") if label.strip())


def functions(expr: str) -> set[str]:
    """Functions and aggregations that an expression uses."""
    return set(re.findall(r"\b([a-z_]+)\s*(?:(?:by|without)\s*\([^)]*\)\s*)?\(", TEXT.sub('""', expr))) - WORDS


def _blank_groupings(expr: str) -> str:
    return GROUPING.sub(lambda found: " " * len(found[0]), expr)


def _matchers(expr: str, at: int) -> tuple[str, int]:
    found = re.compile(r"\s*(\{[^{}]*\})").match(expr, at)
    return (found[1], found.end()) if found else ("", at)


def _window(expr: str, at: int) -> str:
    found = WINDOW.match(expr, at)
    return found[1] if found else ""


def _function(masked: str, at: int) -> str:
    """The function or aggregation whose argument begins here."""
    found = re.search(r"([a-z_]+)\s*\(\s*$", masked[:at])
    return found[1] if found else ""
