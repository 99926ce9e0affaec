"""``/proc/<pid>/environ`` -> the few variables that were asked for. What else is in it is nobody's business."""

from __future__ import annotations

from collections.abc import Collection

from ..files import Unreadable

VALUE_CHARACTERS = 128


def environ(data: bytes, wanted: Collection[str]) -> dict[str, str]:
    """The wanted variables that are set and not empty, as labels can carry them; of two of a name the first stands.

    Raises Unreadable: a program that shows a title of its own, as with setproctitle, writes it over its environment.
    """
    if not data.strip(b"\0"):
        raise Unreadable("empty")
    first, equals, _ = data.partition(b"=")
    if not equals or not first or b"\0" in first:
        raise Unreadable("garbage")
    names = {name.encode(): name for name in wanted}
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        raw_name, _, raw = entry.partition(b"=")
        name = names.get(raw_name)
        if name is not None and name not in found and (value := label(raw)):
            found[name] = value
    return found


def label(raw: bytes, most: int = VALUE_CHARACTERS) -> str:
    """Text of anybody's making, fit for a label: decoded, printable, without blanks around it, and bounded."""
    # Four bytes are the most that a character takes.
    text = raw[: most * 4].decode("utf-8", "replace")[:most].strip()
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)
