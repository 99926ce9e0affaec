"""Tests with torch's CUDA build, on the stand-in for CUDA's libraries. `make test-cuda` sets up what they need and runs
them. `make test` does not collect them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cudastandin import lab
from support_forks import Forks

collect_ignore_glob = [] if os.environ.get("WHYIDLE_TEST_CUDA") else ["test_*.py"]


@pytest.fixture(scope="session")
def cuda_forks() -> Iterator[Forks]:
    with lab.forks() as found:
        yield found
