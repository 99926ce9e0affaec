"""Other programs of the machine, which compute all the time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def neighbours(number: int) -> Iterator[None]:
    """Each in one thread."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()
