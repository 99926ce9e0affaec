"""Runs all tests: first those that may run beside each other, three at a time, then those that need the cores alone.

    python tools/suite.py [ARGUMENTS OF PYTEST ...]

Many tests compare what was recorded with clocks of their own, on real processes. Where a machine's cores are shared,
others take them away for seconds, and such a test fails although nothing is wrong. So tests that failed run again,
alone, up to ``AGAIN`` times. A test that never passes is a failure. One that passes later is listed at the end as
unsteady; find out which clock it trusts. More than ``MOST_AGAIN`` failures are a failure at once, as is whatever stops
pytest itself.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TESTS = "tests"
BESIDE = ("-n", "3", "--dist", "loadgroup", "-m", "not alone")
ALONE = ("-m", "alone")
AGAIN = 2
MOST_AGAIN = 10
PASSED, FAILED, NO_TESTS = 0, 1, 5
"""Exit statuses of pytest (pytest.ExitCode)."""
_GROUP = re.compile(r"@[\w -]+$")
"""What pytest-xdist appends to the name of a test that has a group."""


def run(words: Sequence[str], cache: Path) -> tuple[int, list[str]]:
    """Runs pytest -> its exit status, and the names of the tests that failed."""
    command = [sys.executable, "-m", "pytest", "--timeout", "600", "-o", f"cache_dir={cache}", *words]
    status = subprocess.run(command, check=False).returncode
    try:
        failed = json.loads((cache / "v" / "cache" / "lastfailed").read_text())
    except FileNotFoundError:
        failed = {}
    return status, [_GROUP.sub("", name) for name in failed]


def part(words: Sequence[str], cache: Path) -> tuple[int, list[str]]:
    """Runs a part of the suite -> its exit status, and the names of the tests that failed at first and passed later."""
    status, failed = run([*words, TESTS], cache / "0")
    if status == NO_TESTS:
        return PASSED, []
    unsteady: list[str] = []
    for again in range(1, 1 + AGAIN):
        if status != FAILED or not 0 < len(failed) <= MOST_AGAIN:
            break
        print(f"{len(failed)} failed. Run again, alone, {again} of {AGAIN}:", flush=True)
        before = failed
        status, failed = run(before, cache / str(again))
        unsteady += [name for name in before if name not in failed]
    return status, unsteady


def main(words: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        beside, unsteady = part([*BESIDE, *words], Path(folder, "beside"))
        if beside not in (PASSED, FAILED):
            return beside
        alone, more = part([*ALONE, *words], Path(folder, "alone"))
    for name in [*unsteady, *more]:
        print(f"unsteady, passed when it ran again: {name}")
    return beside or alone


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
