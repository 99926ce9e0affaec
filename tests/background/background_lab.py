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

import slow_mounts
from background_rows import Case
from network_nodes import limited, network_nodes
from network_nodes import missing as missing_network
from support_sites import WHYIDLE, clean_env
from support_suite_of_cases import CannotRun

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_SECONDS = 150.0
_FILES, _MB, _MBIT = 64, 1 << 20, 1_000_000


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
    report = json.loads(_ask(folder / "ledgers", "--json"))
    return Observed(truths, stretches, report, _ask(folder / "ledgers"), output)


def _place(case: Case, folder: Path, stack: contextlib.ExitStack) -> _Place:
    if case.disk:
        if lacks := slow_mounts.missing():
            raise CannotRun(lacks)
        slow = stack.enter_context(slow_mounts.throttled(folder / "disk", case.disk))
        for number in range(_FILES):
            (slow.point / f"{number:03}").write_bytes(os.urandom(_MB))
        slow_mounts.forget(slow.point)
        return _Place([(slow.inside, {})], slow.inside, {"disk": str(slow.point)})
    if case.mbit:
        if lacks := missing_network():
            raise CannotRun(lacks)
        nodes = stack.enter_context(network_nodes(2, 1))
        stack.enter_context(limited(nodes, 0, case.mbit * _MBIT))
        _start(stack, nodes[1].inside(sys.executable, str(SCRIPTS / "injector.py"), str(folder), "--receive"))
        ranks = [(node.inside(), node.environment(nodes[0], 2)) for node in nodes]
        return _Place(ranks, nodes[0].inside(), {"peer": nodes[1].address()})
    return _Place([([], _alone() if "save" in case.job else {})], [], {})


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


def _ask(ledgers: Path, *options: str) -> str:
    words = [*WHYIDLE, "report", f"--dir={ledgers}", *options]
    told = subprocess.run(words, env=clean_env(), capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    if told.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {told.stderr.strip()}")
    return told.stdout
