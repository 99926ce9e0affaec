"""grafanalib, for the type checker's eyes: it writes its classes in a way that no checker reads."""

from __future__ import annotations

from typing import Any

import grafanalib.core

core: Any = grafanalib.core
Dashboard = Any
Panel = Any
Target = Any
Template = Any

__all__ = ["Dashboard", "Panel", "Target", "Template", "core"]
