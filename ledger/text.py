"""The strings of a ledger: names of runs, owners and nodes."""

from __future__ import annotations

from .layout import STRING_AT


def stored(field: str, text: str) -> bytes:
    """The bytes of a string in its field of the ledger, at most as many as fit. Never raises.

    In a locale without UTF-8, Python keeps other characters of arguments and of the environment as surrogates. Their
    bytes are stored as they were given.
    """
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "replace")
    return raw[: STRING_AT[field][1]]


def with_suffix(run: str, suffix: str) -> str:
    """A name of a run with a suffix, which is not cut off."""
    room = STRING_AT["run"][1] - len(stored("run", suffix))
    return stored("run", run)[:room].decode("utf-8", "ignore") + suffix


def read(raw: bytes) -> str:
    """A string that can be used as a label: decoded, cut at the first NUL, without control characters.

    Backquotes become apostrophes: where several runs can be selected, dashboards write the names between backquotes,
    and PromQL has no escape for them there.
    """
    return printable(raw.split(b"\0", 1)[0].decode("utf-8", "replace")).replace("`", "'")


def as_stored(field: str, text: str) -> str:
    """A string as every reader of the ledger gets it, for comparisons."""
    return read(stored(field, text))


def printable(text: str) -> str:
    """Text without control characters, for a label or a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)
