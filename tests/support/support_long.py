"""Parameters of tests of which `make test` runs some, and `make test-all` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def long_unless(usual: Collection[Any], rows: Iterable[Any]) -> list[Any]:
    """The rows of a parametrized test. Rows that are not in ``usual`` are marked `long`."""
    found = []
    for row in rows:
        values = row if isinstance(row, tuple) else (row,)
        found.append(pytest.param(*values, marks=() if row in usual else pytest.mark.long))
    return found
