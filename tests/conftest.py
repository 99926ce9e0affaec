"""Fixtures of the collectors that look at the processes of ranks: the fake node's two ranks and their trees.

And Ctrl-C as everybody has it: what a shell starts in the background ignores SIGINT, and hands that on to every process
that a test starts and interrupts.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_node import processes
from support_ledgers import children

from whyidle.agent.files import Roots

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The live ledgers of the fake node's two ranks."""
    directory = tmp_path_factory.mktemp("ledgers")
    with children(directory, *processes.specs()):
        yield directory


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """The trees that show their processes."""
    found = Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path / "root"))
    processes.build(found)
    return found
