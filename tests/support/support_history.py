"""Runs over hours: the results of scrapes and rules, as blocks of a real Prometheus, and their ledgers.

A rank's counters grow step by step, and its startup is counted at the first step. Scrapes are 15 s apart, evaluations a
minute. An agent keeps the series of an ended rank for 15 minutes, and its sums for longer. If rules have not seen a
rank for 5 minutes, they count all seconds of its next report as new.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support_ledgers import Spec

from whyidle.ledger.causes import CAUSE_FAMILY
from whyidle.ledger.gpus import UNUSED
from whyidle.ledger.layout import BEGINNINGS

SCRAPE, EVALUATION, RETENTION, REMEMBERED = 15.0, 60.0, 900.0, 300.0
RANKS_EVALUATION = 360.0
BOUNDS = ("0.5", "1.0", "1.5", "2.0", "3.0", "+Inf")
"""Bounds of the histogram of step times."""
Series = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Try:
    """An attempt. Times in seconds; ``start`` counts from the run's own beginning."""

    start: float
    startup: float
    steps: int
    step: dict[int, dict[str, float]]
    """By rank, the seconds of a step by cause. The steps of all ranks take equally long."""
    nodes: tuple[str, ...]
    """By rank."""
    saves: int = 0
    repeated: int = 0
    halt: tuple[int, float] = (0, 0.0)
    """After how many steps it stood still, and for how long: in a collective that could not be split."""
    number: int = 0
    killed: bool | None = None
    """None: the agents are of an older whyidle, which does not export it."""
    failed: bool = False
    attach: float = 0.0
    """Seconds from its start until it has a ledger, which contains them at once: imports."""
    restore: float = 0.0
    """Seconds of the startup in which it restores a checkpoint."""
    restored: tuple[str, int, int] = ("", -1, -1)
    """How it goes on, the step of the checkpoint, and the attempt that has saved it: only the first rank knows it."""
    unused: int = 0
    """How many of its first ranks train on the CPU beside a GPU."""
    stopped: bool = False
    """Whether all ranks get SIGTERM at its end."""

    @property
    def wall(self) -> float:
        return sum(self.step[0].values())

    @property
    def window(self) -> float:
        return self.start + self.startup

    @property
    def end(self) -> float:
        return self.window + self.steps * self.wall + self.halt[1]

    def done(self, moment: float) -> int:
        """Steps that were finished by then."""
        after, long = self.halt
        stepped = moment - self.window
        if long and stepped > after * self.wall:
            stepped = max(after * self.wall, stepped - long)
        return min(self.steps, max(0, int(stepped / self.wall + 1e-9)))

    def switched(self, moment: float) -> tuple[str, float]:
        """The phase that is open, and since when."""
        if moment < self.window:
            return "startup", self.start + self.attach
        after, long = self.halt
        began = self.window + after * self.wall
        if long and began <= moment < began + long:
            return "collective", began
        done = self.done(moment)
        return "compute", self.window + done * self.wall + (long if long and done >= after else 0.0)

    def counted(self, rank: int, moment: float) -> dict[str, float]:
        """The counted seconds by cause."""
        if moment < self.window:
            return {"startup": self.attach}
        done = self.done(moment)
        found = {cause: done * seconds for cause, seconds in self.step[rank].items()}
        if self.halt[1] and moment >= self.window + self.halt[0] * self.wall + self.halt[1]:
            found["collective"] = found.get("collective", 0.0) + self.halt[1]
        if self.restore:
            found["checkpoint_read"] = self.restore
        return {**found, "startup": self.startup - self.restore}


@dataclass(frozen=True)
class History:
    """A run. ``began`` and ``now`` are in Unix seconds."""

    run: str
    began: float
    now: float
    tries: list[Try] = field(default_factory=list)
    world_size: int = 0
    another_agent: float = float("inf")
    """The time from which another agent, under another address, reads each node."""

    @property
    def ranks(self) -> int:
        return len(self.tries[0].nodes)

    def specs(self) -> Iterator[Spec]:
        """The ledgers of all nodes together, of ended ranks. All tries but the last failed."""
        for one in self.tries:
            for rank in range(len(one.nodes)):
                yield Spec(
                    run=self.run,
                    rank=rank,
                    world_size=len(one.nodes),
                    attempt=one.number,
                    node=one.nodes[rank],
                    created=1 + one.number,
                    startup=one.startup,
                    steps=one.steps,
                    step=one.step[rank],
                    idle=self.now - self.began - one.end,
                    failed=one is not self.tries[-1] and not one.stopped,
                    words={
                        "checkpoints": one.saves if rank == 0 else 0,
                        "base_step": self._base(one),
                        "recompute_until": self._base(one) + one.repeated,
                        "stopped_by": 15 * one.stopped,
                        "gpu_unused": UNUSED.index("model") * (rank < one.unused),
                        **self._restored(one, rank),
                    },
                )

    def _base(self, one: Try) -> int:
        return one.restored[1] if one.restored[0] else 1000 * one.number

    def _restored(self, one: Try, rank: int) -> dict[str, int]:
        how, step, saved_by = one.restored
        known = bool(how) and rank == 0
        words = {"beginning": BEGINNINGS.index(how), "restored_step": step + 1, "restored_attempt": saved_by + 1}
        return words if known else {}

    def series(self, recorded: bool = True) -> Series:
        found: Series = {}
        places = {(rank, node) for one in self.tries for rank, node in enumerate(one.nodes)}
        for rank, node in sorted(places):
            here = [one for one in self.tries if rank < len(one.nodes) and one.nodes[rank] == node]
            self._scraped(found, here, rank, node)
            if recorded:
                self._recorded(found, here, rank, node)
        return found

    def _scraped(self, found: Series, here: list[Try], rank: int, node: str) -> None:
        for moment in _moments(self.began, self.now, SCRAPE):
            at = moment - self.began
            port = 9838 + (at >= self.another_agent)
            labels = f'job="whyidle", instance="{node}:{port}", owner="lab", run="{self.run}", rank="{rank}"'
            place = f'{labels}, node="{node}", device="cpu"'
            begun = [one for one in here if one.start + one.attach <= at]
            if not begun or at > begun[-1].end + RETENTION:
                continue
            newest = begun[-1]

            def put(name: str, value: float, more: str = "", of: str = labels, moment: float = moment) -> None:
                found.setdefault(f"{name}{{{of}{more}}}", []).append((moment, value))

            identity = (
                f', uuid="", world_size="{self.world_size or len(newest.nodes)}", local_rank="{rank % 2}",'
                f' attempt="{newest.number}", pid="{100 + newest.number}"'
            )
            put("whyidle_rank_info", 1.0, identity, place)
            put("whyidle_steps_total", sum(one.done(at) for one in begun))
            for cause, seconds in self._totals(begun, rank, at).items():
                more = f', cause="{cause}", family="{CAUSE_FAMILY[cause]}"'
                put("whyidle_device_seconds_total", seconds, more, place)
            if rank == 0:
                saves = sum(one.saves * one.done(at) // one.steps for one in begun)
                put("whyidle_checkpoints_total", float(saves), ', kind="save"')
            loads = sum(one.restore > 0 and at >= one.window for one in begun)
            put("whyidle_checkpoints_total", float(loads), ', kind="load"')
            how, step, saved_by = newest.restored
            if how and rank == 0:
                more = f', beginning="{how}", saved_by="{saved_by}", requeues="0"'
                put("whyidle_rank_restored_step", float(step), more)
            if at >= newest.end and newest.stopped:
                put("whyidle_rank_stopped", 1.0, f', node="{node}"')
            if at >= newest.end and newest.killed is not None:
                put("whyidle_rank_killed", float(newest.killed and rank == 0), f', node="{node}"')
                put("whyidle_rank_failed", float(newest.failed and rank == 0), f', node="{node}"')
            if at < newest.end:
                phase, since = newest.switched(at)
                put("whyidle_phase_open_seconds", at - since, f', phase="{phase}"', place)
                if rank < newest.unused and at >= newest.window:
                    put("whyidle_rank_unused_gpus", 1.0, f', node="{node}", reason="model"')

    def _recorded(self, found: Series, here: list[Try], rank: int, node: str) -> None:
        run = f'owner="lab", run="{self.run}"'
        before: dict[str, float] = {}
        of_rank: dict[str, float] = {}
        visible = 0.0
        for moment in _moments(self.began, self.now + EVALUATION, EVALUATION):
            scraped = moment - self.began - (moment - self.began) % SCRAPE
            begun = [one for one in here if one.start + one.attach <= scraped]
            if begun and scraped <= begun[-1].end + RETENTION:
                visible = scraped
            elif scraped - visible > REMEMBERED:
                before = {}
                continue
            totals = self._totals(begun, rank, scraped)
            for cause, seconds in totals.items():
                if grown := seconds - before.get(cause, 0.0):
                    of = f'{run}, node="{node}", cause="{cause}", family="{CAUSE_FAMILY[cause]}"'
                    _add(found, f"run_node_cause:whyidle_device_seconds:increase{{{of}}}", moment, grown)
                    name = f'rank_cause:whyidle_device_seconds:increase{{{of}, rank="{rank}"}}'
                    of_rank[name] = of_rank.get(name, 0.0) + grown
            if (moment - self.began) % RANKS_EVALUATION == 0:
                for name, grown in of_rank.items():
                    _add(found, name, moment, grown)
                of_rank = {}
            before = totals
            if begun and scraped < begun[-1].end:
                _add(found, f"run:whyidle_ranks:count{{{run}}}", moment, 1.0)
                # This is the share of the live ranks. At the end of an attempt, only the first one lives.
                if (live := 1 if scraped + EVALUATION >= begun[-1].end else len(begun[-1].nodes)) > rank:
                    _add(found, f"run:whyidle_unused:ratio{{{run}}}", moment, (rank < begun[-1].unused) / live)
                for bound in BOUNDS:
                    name = f'run:whyidle_step_seconds_bucket:rate5m{{{run}, le="{bound}"}}'
                    _add(found, name, moment, float(begun[-1].wall <= float(bound)) / begun[-1].wall)

    @staticmethod
    def _totals(begun: Iterable[Try], rank: int, at: float) -> dict[str, float]:
        totals: dict[str, float] = {}
        for one in begun:
            for cause, seconds in one.counted(rank, at).items():
                totals[cause] = totals.get(cause, 0.0) + seconds
        return totals


def _moments(begin: float, end: float, every: float) -> Iterator[float]:
    moment = begin
    while moment <= end:
        yield moment
        moment += every


def _add(found: Series, name: str, moment: float, value: float) -> None:
    """Adds to the values of other ranks of the node at the same moment."""
    points = found.setdefault(name, [])
    for place, (at, before) in enumerate(points):
        if at == moment:
            points[place] = (moment, before + value)
            return
    points.append((moment, value))


def backfill(folder: Path, *histories: Series) -> None:
    """Writes blocks into the directory `data`, where a Prometheus that starts later finds them."""
    text = folder / "history.txt"
    with open(text, "w") as file:
        for series in histories:
            for name, points in series.items():
                compact = name.replace(", ", ",")  # the format allows no spaces between labels
                file.writelines(f"{compact} {value!r} {moment:.3f}\n" for moment, value in sorted(points))
        file.write("# EOF\n")
    done = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
