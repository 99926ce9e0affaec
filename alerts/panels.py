"""The panel that shows what an alert is about, and how panels are numbered: links lead to a panel by its number."""

from __future__ import annotations

import zlib


def panel_id(title: str) -> int:
    """The number of a panel in its dashboard. It depends on the title alone, so that a link outlives other changes."""
    return 1 + zlib.crc32(title.encode()) % 999_999
