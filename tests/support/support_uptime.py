"""Commands that run as if the machine had started a given time ago: in a time namespace, which only root can create."""

from __future__ import annotations

import shutil
import subprocess
import time
from math import ceil

import pytest

from whyidle.ledger.clock import own_clock

SECOND = 1_000_000_000


def since_start(uptime: float, *command: str) -> list[str]:
    """The prefix that runs a command with that uptime, or up to a second more.

    Skips the test if this is not permitted.
    """
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare command here to run with another uptime")
    words = _words(uptime)
    tried = subprocess.run([*words, "true"], stderr=subprocess.PIPE, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a command cannot be run with another uptime here: {tried.stderr.strip()}")
    return [*words, *command]


def _words(uptime: float) -> list[str]:
    # The offsets are against the clocks of the machine, also where this is a time namespace already. See
    # proc_pid_timens_offsets(5) and proc_timens_set_offset() in the kernel's kernel/time/namespace.c.
    own = own_clock()
    words = ["unshare", "--time"]
    for option, clock, offset in (
        ("--monotonic", time.CLOCK_MONOTONIC, own.monotonic_offset_ns),
        ("--boottime", time.CLOCK_BOOTTIME, own.boottime_offset_ns),
    ):
        words += [option, str(ceil(uptime - (time.clock_gettime_ns(clock) - offset) / SECOND))]
    return words
