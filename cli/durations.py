"""Reads durations from the command line, in Prometheus's form: 90s, 15m, 24h, 1h30m, 250ms."""

from __future__ import annotations

import argparse
import re

UNITS: dict[str, float] = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[dhms])")


def duration(text: str) -> float:
    """Reads a duration, in seconds. Raises argparse.ArgumentTypeError with a sentence."""
    if text == "0":
        return 0.0
    if not re.fullmatch(f"(?:{_PART.pattern})+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write 90s, 15m or 24h")
    return sum(float(number) * UNITS[unit] for number, unit in _PART.findall(text))


def some_time(text: str) -> float:
    """Reads a duration of at least 1 ms, in seconds. Raises argparse.ArgumentTypeError."""
    seconds = duration(text)
    if seconds < 0.001:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1ms, such as 1s")
    return seconds
