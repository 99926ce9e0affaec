"""Runs a case, and asks whyidle about it. Disks and links are slow for the processes of the case alone."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from background_rows import Case
from network_nodes import limited, network_nodes
from network_nodes import missing as missing_network
from support_bottlenecks_disks import missing as missing_disk
from support_bottlenecks_disks import slow_folder
from support_ledgers import until
from support_sites import WHYIDLE, clean_env
from support_suite_of_cases import CannotRun, ask_report

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_SECONDS = 150.0
WATCHER_SHARE = "0.003"
"""A look costs some milliseconds where two ranks and the work share two cores. With 0.001, some blocks
of steps are 10 to 20 s long."""
_FILES, _MB, _MBIT = 32, 1 << 20, 1_000_000


@dataclass(frozen=True)
class Observed:
    truths: list[dict[str, Any]]
    stretches: list[tuple[float, float]]
    report: dict[str, Any]
    text: str
    output: str


@dataclass
class _Place:
    """Where a case runs: the prefixes of the commands of each rank and of the injector, and names in its arguments."""

    ranks: list[tuple[list[str], dict[str, str]]]
    injector: list[str]
    names: dict[str, str]


def observe(case: Case, folder: Path, say: Callable[[str], None] = lambda text: None) -> Observed:
    """Raises CannotRun."""
    (folder / "ledgers").mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        place = _place(case, folder, stack)
        say("runs")
        if case.injected:
            _start(stack, [*place.injector, *_injector(case, folder, place.names)])
        output = _train(case, folder, place)
    injected = folder / "injected.json"
    truths = [json.loads(path.read_text()) for path in sorted(folder.glob("truth-*.json"))]
    stretches = json.loads(injected.read_text()) if injected.exists() else []
    stretches += [tuple(each) for each in (truths[0]["stretches"] if truths else ())]
    report = json.loads(ask_report(folder / "ledgers", "--json", seconds=LIMIT_SECONDS))
    return Observed(truths, stretches, report, ask_report(folder / "ledgers", seconds=LIMIT_SECONDS), output)


def _place(case: Case, folder: Path, stack: contextlib.ExitStack) -> _Place:
    if case.disk:
        if lacks := missing_disk():
            raise CannotRun(lacks)
        point = stack.enter_context(_slow_disk(folder, case.disk))
        return _Place([([], {})], [], {"disk": str(point)})
    if case.mbit:
        if lacks := missing_network():
            raise CannotRun(lacks)
        nodes = stack.enter_context(network_nodes(2, 1))
        stack.enter_context(limited(nodes, 0, case.mbit * _MBIT))
        _start(stack, nodes[1].inside(sys.executable, str(SCRIPTS / "injector.py"), str(folder), "--receive"))
        ranks = [(node.inside(), node.environment(nodes[0], 2)) for node in nodes]
        return _Place(ranks, nodes[0].inside(), {"peer": nodes[1].address()})
    return _Place([([], _alone() if "save" in case.job else {})], [], {})


@contextlib.contextmanager
def _slow_disk(folder: Path, bytes_per_second: int) -> Iterator[Path]:
    """A disk with files, of which reads and writes share a rate: a loop device on a file of a slow file system."""
    below, point = folder / "image", folder / "disk"
    below.mkdir()
    point.mkdir()
    with open(below / "disk", "wb") as image:
        image.truncate(2 * _FILES * _MB)
    with _mounted(below / "disk", point, new=True):
        for number in range(_FILES):
            (point / f"{number:03}").write_bytes(os.urandom(_MB))
    with (
        slow_folder(below, folder / "slow", read_ms=0, cached=False, bytes_per_second=bytes_per_second) as slow,
        _mounted(slow / "disk", point),
    ):
        yield point


@contextlib.contextmanager
def _mounted(image: Path, point: Path, new: bool = False) -> Iterator[None]:
    words = ["losetup", "--find", "--show", str(image)]
    device = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    try:
        if new:
            subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device], check=True)
        subprocess.run(["mount", device, str(point)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", str(point)], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)
        until(lambda: not _backs(image))  # the kernel detaches it when nobody uses it any more


def _backs(image: Path) -> str:
    return subprocess.run(["losetup", "--associated", str(image)], capture_output=True, text=True, check=True).stdout


def _alone() -> dict[str, str]:
    """The variables of a process group of one rank."""
    return {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29417"}


def _injector(case: Case, folder: Path, names: dict[str, str]) -> list[str]:
    words = [word.format(**names) for word in case.injected]
    return [sys.executable, str(SCRIPTS / "injector.py"), str(folder), *words]


def _start(stack: contextlib.ExitStack, words: Sequence[str]) -> None:
    process = stack.enter_context(subprocess.Popen(words, env=clean_env(OMP_NUM_THREADS="1")))
    stack.callback(process.kill)


def _train(case: Case, folder: Path, place: _Place) -> str:
    script = [*WHYIDLE, "run", "--", sys.executable, str(SCRIPTS / "steps.py")]
    script += [word.format(**place.names) for word in case.job]
    running = []
    for rank, (prefix, more) in enumerate(place.ranks):
        env = clean_env(BACKGROUND_DIR=str(folder), WHYIDLE_DIR=str(folder / "ledgers"), OMP_NUM_THREADS="1", **more)
        env |= {"WHYIDLE_WATCHER_SHARE": WATCHER_SHARE}
        with open(folder / f"output-{rank}", "wb") as output:
            running.append(subprocess.Popen([*prefix, *script], env=env, stdout=output, stderr=output, cwd=folder))
    deadline = time.monotonic() + LIMIT_SECONDS
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline - time.monotonic()))
        process.kill()
        process.wait()
    return "\n".join(_outputs(folder))


def _outputs(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("output-*")):
        yield path.read_text(errors="replace")[-2000:]
