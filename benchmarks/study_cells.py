"""The trainings of benchmarks/study.py, and their results: one file each, so that a study continues where it ended."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ranks import run_ranks
from study_job import Job, train, write_start
from study_text import standard_library, write_shards
from study_tiers import TIERS, Group, Node
from whatif_network import shaped

from whyidle.ledger.directory import read_directory
from whyidle.verdict.accounts import quantile
from whyidle.verdict.enough import NO_LIMITS
from whyidle.verdict.report import build_report, runs
from whyidle.verdict.saved import Report

RANKS = 2
LIMIT_SECONDS = 240.0
PREFIX = "whyidle-study-"
_HERE = Path(__file__).parent
_MEASURED = ("study_job.py", "study_model.py", "study_text.py", "study_tiers.py", "study_nfs.py", "study_nfs.c")


@dataclass(frozen=True)
class Storage:
    """Where a training has its files."""

    name: str
    data: str
    """A key of TIERS."""
    checkpoints: str

    @property
    def lacks(self) -> str | None:
        return TIERS[self.data].lacks() or TIERS[self.checkpoints].lacks()

    @property
    def survives(self) -> str:
        """Whether checkpoints survive the loss of a node."""
        return TIERS[self.checkpoints].survives


@dataclass(frozen=True)
class Link:
    name: str
    mbit: int


STORAGES = (
    Storage("memory", "memory", "memory"),
    Storage("disk", "disk", "disk"),
    Storage("disk+cached", "disk", "cached"),
    Storage("nfs", "nfs", "nfs"),
    Storage("cached", "cached", "cached"),
    Storage("object", "object", "object"),
)
"""From the fastest to the slowest."""
LINKS = (Link("100mbit", 100), Link("4gbit", 4000))
"""From the slowest to the fastest. The second is forty times as fast as the first."""


@dataclass(frozen=True)
class Cell:
    storage: Storage
    link: Link
    round: int

    @property
    def name(self) -> str:
        return f"{self.storage.name}-{self.link.name}"

    def file(self, out: Path) -> Path:
        return out / f"{self.name}.{self.round}.json"


@dataclass(frozen=True)
class Own:
    """What the training measured with its own clock, in seconds."""

    step: float
    wait: float
    wait_p99: float
    """Over the steps, of the rank that waits longest."""
    save: float
    restore: float
    read_100: float
    """To read 100 samples, in a data worker."""
    total: float
    first_loss: float
    last_loss: float
    """The mean of the last ten steps, in nats for each token."""


@dataclass(frozen=True)
class Result:
    cell: Cell
    report: Report
    own: Own


def own_clock(clocks: list[dict[str, Any]]) -> Own:
    """Summarises the clocks of all ranks. The first step is left out, as in whyidle's reports."""
    longest = [max(waits) for waits in zip(*(clock["waits"][1:] for clock in clocks), strict=True)]
    return Own(
        step=fmean(fmean(clock["steps"][1:]) for clock in clocks),
        wait=fmean(fmean(clock["waits"][1:]) for clock in clocks),
        wait_p99=quantile(sorted(longest), 0.99),
        save=fmean(clocks[0]["saves"]),
        restore=max(clock["restore"] for clock in clocks),
        read_100=100 * fmean(seconds for clock in clocks for seconds in clock["reads"]),
        total=max(clock["total"] for clock in clocks),
        first_loss=fmean(clock["losses"][0] for clock in clocks),
        last_loss=fmean(fmean(clock["losses"][-10:]) for clock in clocks),
    )


def settings(steps: int) -> str:
    """Results with other settings, or of another version of the training, are measured again."""
    digest = hashlib.sha256(f"{steps} {STORAGES} {LINKS}".encode())
    for name in _MEASURED:
        digest.update((_HERE / name).read_bytes())
    return digest.hexdigest()[:16]


def read(cell: Cell, out: Path, steps: int) -> Result | None:
    """The result of a training that is already there, or None."""
    try:
        found = json.loads(cell.file(out).read_text())
        if found["settings"] != settings(steps):
            return None
        return Result(cell, found["report"], Own(**found["own"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def measure(cell: Cell, out: Path, steps: int, names: tuple[str, ...], files: Path) -> Result:
    """Trains once, and writes the result. ``files`` has the shards and the first checkpoint. Raises ranks.Failed."""
    with _node(names, files) as node, contextlib.ExitStack() as stack:
        places = {tier: stack.enter_context(TIERS[tier].mount(node)) for tier in _tiers(cell.storage)}
        stack.enter_context(shaped(names[:RANKS], cell.link.mbit))
        data = tuple(place / "data" for place in places[cell.storage.data])
        job = Job(steps, RANKS, data, places[cell.storage.checkpoints], node.disk_groups)
        own = node.memory / "run"
        own.mkdir()
        run_ranks(lambda rank: train(job, rank, own), names[:RANKS], own, cell.name, limit_seconds=LIMIT_SECONDS)
        ledgers, problems = read_directory(str(own / "ledgers"), steps=True)
        report: dict[str, Any] = build_report(runs(ledgers)[0], ledgers, time.monotonic_ns(), problems, least=NO_LIMITS)
        clocks = [json.loads((own / f"clock-{rank}.json").read_text()) for rank in range(RANKS)]
        result = Result(cell, report, own_clock(clocks))
    out.mkdir(parents=True, exist_ok=True)
    written = cell.file(out).with_suffix(".new")
    written.write_text(json.dumps({"settings": settings(steps), "report": report, "own": asdict(result.own)}))
    written.replace(cell.file(out))
    return result


def _tiers(storage: Storage) -> list[str]:
    return sorted({storage.data, storage.checkpoints})


@contextlib.contextmanager
def prepared() -> Iterator[Path]:
    """A folder with the shards and the checkpoint from which all trainings start. Raises TooLittleText."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir="/dev/shm") as folder:
        write_shards(Path(folder, "data"), standard_library())
        write_start(Path(folder))
        yield Path(folder)


@contextlib.contextmanager
def _node(names: tuple[str, ...], files: Path) -> Iterator[Node]:
    """Everything that a training may write is new, so that no cache knows it."""
    group = Group(f"{PREFIX}{os.getpid()}")
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix=PREFIX, dir="/var/tmp") as disk,
    ):
        group.make()
        try:
            node = Node(Path(memory), Path(disk), group, names)
            shutil.copytree(files, node.files)
            yield node
        finally:
            group.remove()
