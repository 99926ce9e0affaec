"""grafanalib with type ``Any``, because type checkers cannot understand how it defines its classes."""

from __future__ import annotations

from typing import Any

import grafanalib.core

core: Any = grafanalib.core
Dashboard = Any
Panel = Any
Target = Any
Template = Any

__all__ = ["Dashboard", "Panel", "Target", "Template", "core"]
