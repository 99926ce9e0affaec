"""Runs tests: first those that may run beside each other, three at a time, then those that need the cores alone.

    python tools/suite.py [--all] [ARGUMENTS OF PYTEST ...]
    python tools/suite.py [--all] --of FILE ...
    python tools/suite.py [--all] --beside FILE ...
    python tools/suite.py --alone FOLDER [ARGUMENTS OF PYTEST ...]
    python tools/suite.py --slice SECONDS [FOLDER]

With ``--of``, only tests of these files run. With ``--beside``, only those of them that may run beside each other. With
``--alone``, the tests of a folder run one after the other.

Tests marked ``long`` run only with ``--all``: they repeat another test with other data, and take minutes together.
With ``--slice``, some of them run for about that time: those whose last run is longest ago (`long_tests.py`). Both
write down how long tests ended, but not with ``--of`` or ``--beside``, which test other versions of something.

Many tests compare what was recorded with their own clocks, on real processes. Where a machine's cores are shared,
others take them away for seconds, and such a test fails although nothing is wrong. So tests that failed run again,
alone, up to ``AGAIN`` times. A test that never passes is a failure. One that passes later is listed at the end as
unsteady; find out which clock it trusts. Failures in more than ``MOST_AGAIN`` files are a failure at once, as is
whatever stops pytest itself. Tests of one file often share what was recorded, and fail together.

A test of the second part is not judged if it fails each time while a hypervisor takes more than ``STOLEN`` of the CPU
time: nobody can say whether the recording or the machine was wrong. It is listed at the end, and does not count as a
failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import long_tests
from support_forks import SHARED, serving

TESTS = "tests"
DEVICE = Path(TESTS, "support", "simdevice", "build.py")
BESIDE = ("-n", "3", "--dist", "loadgroup")
AGAIN = 2
MOST_AGAIN = 10
STOLEN = 0.05
STOLEN_KEY = "whyidle/stolen"
"""Where tests/conftest.py puts, for each failed test marked ``alone``, the share of the CPU time that was taken."""
PASSED, FAILED, NO_TESTS = 0, 1, 5
"""Exit statuses of pytest (pytest.ExitCode)."""


class Part(NamedTuple):
    """What came of a part of the suite. Tests are named as pytest does."""

    status: int
    unsteady: Sequence[str] = ()
    """Tests that failed at first and passed later."""
    not_judged: Mapping[str, float] = MappingProxyType({})
    """Tests that never passed, and the share of the CPU time that a hypervisor took while they ran last."""


def run(words: Sequence[str], cache: Path) -> tuple[int, dict[str, float]]:
    """Runs pytest -> its exit status, and the tests that failed, with the share of the CPU time that was taken."""
    command = [sys.executable, "-m", "pytest", "--timeout", "600", "-o", f"cache_dir={cache}", *words]
    # With this variable, each process compiles whatever it imports, and each of pytest's also all tests.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    status = subprocess.run(command, env=env, check=False).returncode
    taken = _cached(cache, STOLEN_KEY)
    failed = [long_tests.without_group(name) for name in _cached(cache, "cache/lastfailed")]
    return status, {name: taken.get(name, 0.0) for name in failed}


def _cached(cache: Path, key: str) -> dict[str, Any]:
    try:
        return json.loads(Path(cache, "v", key).read_text())
    except FileNotFoundError:
        return {}


def part(words: Sequence[str], cache: Path) -> Part:
    """Runs a part of the suite, and then the failed tests again."""
    status, failed = run(words, cache / "0")
    if status == NO_TESTS:
        return Part(PASSED)
    unsteady: list[str] = []
    for again in range(1, 1 + AGAIN):
        if status != FAILED or not 0 < len({name.partition("::")[0] for name in failed}) <= MOST_AGAIN:
            return Part(status, unsteady)
        print(f"{len(failed)} failed. Run again, alone, {again} of {AGAIN}:", flush=True)
        before = failed
        status, failed = run(list(before), cache / str(again))
        unsteady += [name for name in before if name not in failed]
    if status == FAILED and failed and all(share > STOLEN for share in failed.values()):
        return Part(PASSED, unsteady, failed)
    return Part(status, unsteady)


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Builds the simulated device beside the first tests. All processes of pytest would soon wait for it otherwise."""
    with subprocess.Popen([sys.executable, DEVICE], stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def slice_of_long_tests(seconds: float, within: str = TESTS) -> int:
    """Runs long tests of a folder for about ``seconds``, and writes down how they ended."""
    tests, record = long_tests.collect([within]), long_tests.read()
    chosen = long_tests.choose(tests, long_tests.after(long_tests.commits(), tests, record, seconds), seconds)
    parts = []
    with tempfile.TemporaryDirectory() as folder, serving() as os.environ[SHARED]:
        for alone, words in ((False, BESIDE), (True, ())):
            names = [test.name for test in chosen if test.alone is alone]
            if names:
                parts.append(part([*words, *names], Path(folder, "alone" if alone else "beside")))
        note_long_tests(tests, record, Path(folder))
    return said(*parts)


def note_long_tests(tests: Sequence[long_tests.Test], record: Mapping[str, long_tests.Last], folder: Path) -> None:
    """Writes down how the long tests ended whose parts have their caches in ``folder``."""
    ran: dict[str, Any] = {}
    for kind in ("beside", "alone"):
        for again in range(1 + AGAIN):
            ran |= _cached(folder / kind / str(again), long_tests.LONG_KEY)
    record = long_tests.merged(tests, record, ran, long_tests.today())
    long_tests.write(record)
    print(f"{len(ran)} of {len(tests)} long tests ran. The last runs of all, also in {long_tests.RECORD}:")
    print("\n".join(long_tests.summary(record)))


def main(words: Sequence[str]) -> int:
    words = list(words)
    if "--slice" in words:
        seconds, *within = words[words.index("--slice") + 1 :]
        return slice_of_long_tests(float(seconds), *within)
    if "--alone" in words:
        words.remove("--alone")
        with tempfile.TemporaryDirectory() as folder:
            return said(part(words, Path(folder)))
    usual = "not long"
    everything = "--all" in words
    if everything:
        words.remove("--all")
        usual = "(long or not long)"
    only_beside = "--beside" in words
    if only_beside:
        words.remove("--beside")
        everything = False
    elif "--of" in words:
        words.remove("--of")
        everything = False
    else:
        words.append(TESTS)
    ahead = building() if words == [TESTS] else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, serving() as os.environ[SHARED], ahead:
        beside = part([*BESIDE, "-m", f"{usual} and not alone", *words], Path(folder, "beside"))
        if beside.status not in (PASSED, FAILED):
            return beside.status
        alone = Part(PASSED) if only_beside else part(["-m", f"{usual} and alone", *words], Path(folder, "alone"))
        if everything:
            note_long_tests(long_tests.collect([TESTS]), long_tests.read(), Path(folder))
    return said(beside, alone)


def said(*parts: Part) -> int:
    """Prints what came of the parts -> the exit status of all."""
    for name in [name for each in parts for name in each.unsteady]:
        print(f"unsteady, passed when it ran again: {name}")
    for name, share in [pair for each in parts for pair in each.not_judged.items()]:
        print(f"NOT JUDGED, the hypervisor took {share:.0%} of the CPU time while it ran: {name}")
    return next((each.status for each in parts if each.status), PASSED)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
