"""How busy the loop of loader.py keeps its device."""

from __future__ import annotations

BUSY_MS, PERIOD_MS = 8.0, 100.0
BUSY_SHARE = BUSY_MS / PERIOD_MS
