"""Kernel calls that answer from a script, in processes that tests start: see kernel.c for what it can say.

    write(tmp_path / "kernel", nic.SCRIPT, clock.SCRIPT)
    subprocess.run(…, env={**os.environ, **environment(tmp_path / "kernel")})

or, for one collector that stays and is asked again and again:

    with scraper("nic", roots, tmp_path / "kernel") as scrape:
        series, errors, blind = scrape()

The script is read again when it changes, so that a running process sees a driver fail or a clock jump.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from whyidle.agent.collector import Options
from whyidle.agent.files import Roots
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.reading import Reading

Scrape = tuple[dict[tuple[str, ...], float], list[tuple[str, ...]], list[tuple[str, ...]]]
"""Series by name and labels, errors, blind spots."""

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = shutil.which("gcc") or shutil.which("cc")
_BUILD_SECONDS = 120


def library() -> Path:
    """The library, compiled once for all workers, as long as its source does not change."""
    assert COMPILER, "no C compiler"
    source = SOURCE.read_bytes()
    folder = Path(tempfile.gettempdir(), f"whyidle-fake-kernel-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / f"{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not built.exists():
        new = folder / f"{built.name}.{os.getpid()}"
        command = [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(new), str(SOURCE), "-ldl", "-pthread"]
        subprocess.run(command, check=True, timeout=_BUILD_SECONDS)
        new.replace(built)
    return built


def environment(script: Path) -> dict[str, str]:
    """The environment of a process that should see the script's kernel."""
    preload = " ".join(filter(None, (str(library()), os.environ.get("LD_PRELOAD"))))
    return {"LD_PRELOAD": preload, "FAKE_KERNEL": str(script)}


def write(path: Path, *scripts: Iterable[str]) -> None:
    """Replaces the script atomically with these lines."""
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(f"{line}\n" for script in scripts for line in script))
    new.replace(path)


def driver(interface: str, name: str, bus: str, stats: Mapping[str, int]) -> list[str]:
    """The lines for an interface's driver and its counters, in order."""
    return [f"driver {interface} {name} {bus}", *(f"stat {interface} {value} {stat}" for stat, value in stats.items())]


def fail(interface: str, call: str, code: int) -> str:
    """The line that makes a call for an interface fail: drvinfo, count, strings or stats."""
    return f"fail {interface} {call} {code}"


def timex(**fields: int) -> list[str]:
    """The lines for the clock: fields of struct timex, `state` (what adjtimex returns) or `errno`."""
    return [f"timex {field} {value}" for field, value in fields.items()]


@contextlib.contextmanager
def scraper(collector: str, roots: Roots, script: Path, *command: str) -> Iterator[Callable[..., Scrape]]:
    """One collector in a process with the script's kernel. Each call is a scrape, by a new collector if asked.

    ``command`` goes before Python.
    """
    process = subprocess.Popen(
        [*command, sys.executable, __file__, collector, roots.procfs, roots.sysfs, roots.rootfs],
        env={**os.environ, **environment(script)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin
    assert stdout

    def scrape(*, anew: bool = False) -> Scrape:
        stdin.write("anew\n" if anew else "\n")
        stdin.flush()
        series, errors, blind = json.loads(stdout.readline())
        return {tuple(key): value for *key, value in series}, list(map(tuple, errors)), list(map(tuple, blind))

    try:
        yield scrape
    finally:
        stdin.close()
        process.wait(_BUILD_SECONDS)
        stdout.close()


def _main(name: str, *roots: str) -> None:
    options = Options(LedgerStore("/nonexistent", 1), Roots(*roots))
    create = import_module(f"whyidle.agent.collectors.{name}").create
    collector = create(options)
    for line in sys.stdin:
        if line.strip() == "anew":
            collector = create(options)
        reading = Reading()
        collector.collect(reading)
        series = [
            (metric.name, *labels, value)
            for metric, samples in reading.samples.items()
            for labels, value in samples.items()
        ]
        print(json.dumps((series, reading.errors, reading.blind_spots)), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
