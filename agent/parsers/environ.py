"""Takes only the wanted variables from ``/proc/<pid>/environ``. The rest is private and is not looked at."""

from __future__ import annotations

from collections.abc import Collection

from ..files import Unreadable

VALUE_CHARACTERS = 128


def environ(data: bytes, wanted: Collection[str], most: int = VALUE_CHARACTERS) -> dict[str, str]:
    """The wanted variables that are set and not empty, as values for labels. The first of several with one name counts.
    At most ``most`` characters of each are kept.

    Raises Unreadable, for example if a program has overwritten its environment with a title (setproctitle).
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
        if name is not None and name not in found and (value := label(raw, most)):
            found[name] = value
    return found


def label(raw: bytes, most: int = VALUE_CHARACTERS) -> str:
    """Untrusted text as the value of a label: decoded, printable, without surrounding blanks, of bounded length."""
    # A character has at most four bytes.
    text = raw[: most * 4].decode("utf-8", "replace")[:most].strip()
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)
