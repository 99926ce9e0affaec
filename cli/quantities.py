"""Reads numbers, sizes and rates from the command line, and prints them."""

from __future__ import annotations

import argparse
import re

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)")
_COUNTS: dict[str, float] = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_RATES: dict[str, float] = {
    f"{prefix}{unit}": power / bits
    for prefix, power in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
    for unit, bits in (("bit/s", 8.0), ("B/s", 1.0))
}
_SIZES: dict[str, float] = {
    f"{prefix}{binary}{byte}": (1024.0 if binary else 1000.0) ** power
    for prefix, power in (("", 0), ("k", 1), ("K", 1), ("M", 2), ("G", 3), ("T", 4))
    for binary in (("", "i") if prefix else ("",))
    for byte in ("", "B")
}
_LEAST, _MOST = 1e-30, 1e30
"""Beyond these, the quotient of two numbers may be infinite."""
_STEPS: tuple[tuple[float, str], ...] = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(text: str) -> float:
    """Reads a number such as 178000, 156e9, 70B or 1.5T.

    Like the other functions that read, it raises argparse.ArgumentTypeError with a sentence.
    """
    return _read(text, _COUNTS, "number", "write 178000, 156e9 or 70B")


def positive(text: str) -> float:
    """Reads a number above 0 without a unit, such as 100 or 51.2."""
    return _read(text, {"": 1.0}, "number", "write 100 or 51.2")


def counts(text: str) -> list[float]:
    """Reads a list of numbers, separated by commas."""
    return [count(part) for part in text.split(",")]


def whole(text: str) -> int:
    """Reads a whole number from 1 to ten million, such as 1000 or 10k."""
    number = count(text)
    if number != int(number) or number > 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 to 10,000,000")
    return int(number)


def rate(text: str) -> float:
    """Reads a rate such as 400Gbit/s or 50GB/s, in bytes/s."""
    return _read(text, _RATES, "rate", "write 400Gbit/s or 50GB/s")


def size(text: str) -> int:
    """Reads a size such as 128kB, 64MiB or 1GB, in bytes."""
    return max(1, round(_read(text, _SIZES, "size", "write 128kB, 64MiB or 1GB")))


def _read(text: str, units: dict[str, float], what: str, how: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    value = float(found[1]) * units[found[2]] if found and found[2] in units else 0.0
    if not _LEAST <= value <= _MOST:
        far = f" from {_LEAST:g} to {_MOST:g}" if value else " above 0"
        raise argparse.ArgumentTypeError(f"{text!r} must be a {what}{far}: {how}")
    return value


def gpu_hour_price(text: str) -> float:
    """Reads the price of one GPU-hour, which may be 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} must be the price of one GPU-hour, such as 2.50")
    return value


def ranks(text: str) -> int:
    """Reads a number of ranks or steps, from 1."""
    if not text.isdecimal() or not 0 < int(text) <= 1 << 20:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 to {1 << 20}")
    return int(text)


def in_bytes(size: float) -> str:
    """A size with three digits and a decimal unit, such as 1.50 GB."""
    return f"{_three(size)}B"


def in_bits(bytes_per_second: float) -> str:
    """A rate with three digits in bits per second, such as 400 Gbit/s."""
    return f"{_three(8 * bytes_per_second)}bit/s"


def _three(value: float) -> str:
    for power, prefix in _STEPS:
        if value >= 0.9995 * power:
            return f"{_digits(value / power)} {prefix}"
    return f"{_digits(value)} "


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def in_time(seconds: float) -> str:
    """A time in a unit that fits, with at most three digits, such as 250 ms or 3.50 h."""
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{_digits(seconds / unit)} {name}"
    if 0 < seconds < 0.0001:
        return f"{_digits(1e6 * seconds)} µs"
    return f"{_digits(seconds)} s" if seconds >= 1 else f"{_digits(1000 * seconds)} ms"


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def hours_of(accelerated: bool) -> str:
    """The unit for the cost of a run: GPU-hours, or rank-hours if it has no accelerators."""
    return "GPU-hours" if accelerated else "rank-hours"
