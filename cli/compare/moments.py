"""RUN@FROM..TO: a run in Prometheus, and which part of its time is meant."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import NamedTuple

from ..durations import duration


class Part(NamedTuple):
    """Of a run's time. Unix seconds; without them, what `--since` says."""

    name: str
    start: float | None = None
    end: float | None = None


def part_of(argument: str, now: float) -> Part:
    """The run's name and the time that ``argument`` names.

    A time is a date (2026-11-21T02:00, on this machine's clock unless it names a zone), or how long ago it was (26h).
    FROM alone means until now. An @ that no times follow belongs to the name. Raises argparse.ArgumentTypeError.
    """
    name, at, times = argument.rpartition("@")
    if not at or not name:
        return Part(argument)
    begin, dots, end = times.partition("..")
    start = _moment(begin, now)
    stop = (_moment(end, now) if dots else now) if start is not None else None
    if start is None or stop is None:
        if dots:
            raise argparse.ArgumentTypeError(
                f"{times!r} must be two times, FROM..TO: how long ago (26h..24h), or 2026-11-21T02:00..2026-11-21T04:00"
            )
        return Part(argument)
    if start >= stop:
        raise argparse.ArgumentTypeError(
            f"{times!r} must begin before it ends: write the earlier time first (26h..24h)"
        )
    return Part(name, start, stop)


def _moment(text: str, now: float) -> float | None:
    try:
        return now - duration(text)
    except argparse.ArgumentTypeError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
