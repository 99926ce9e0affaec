"""Runs cases in forks and a network of namespaces, each case once."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from support_forks import Forks
from support_quiet import Stolen, wait_for_quiet
from support_sites import report
from support_training import meeting

from parallel import links
from parallel.cases import SHAPES
from parallel.logs import Log, read_logs
from parallel.spec import LINK, NOTHING, RANKS, Spec
from parallel.truth import Truth, truth

STEPS, SOUND_STEPS = 24, 150
"""Steps of a run with a fault, and of one without, whose steps are shorter. In a run of a second, one wait for a CPU is
a tenth of the time."""
LIMIT_SECONDS = 240.0


@dataclass(frozen=True)
class Run:
    spec: Spec
    logs: list[Log] = field(repr=False)
    stolen: float = 0.0
    """The share of this machine's CPU time that its hypervisor gave to others meanwhile."""

    @property
    def truth(self) -> Truth:
        return truth(self.spec, self.logs)

    @property
    def report(self) -> dict[str, Any]:
        """The report of `whyidle report` on it."""
        return report(self.spec.ledgers)

    @property
    def losses(self) -> list[list[str]]:
        """By rank and step, exact to the bit."""
        return [Path(self.spec.folder, f"losses-{rank}.txt").read_text().split() for rank in range(RANKS)]


@dataclass
class Lab:
    """Without the right to create namespaces the ranks use the loopback interface, and no link can be slow."""

    folder: Path
    forks: Forks
    lacks: str | None = field(default_factory=links.missing)
    _done: dict[Spec, Run] = field(default_factory=dict, repr=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Lab:
        self._names = () if self.lacks else self._stack.enter_context(links.network())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def run(self, shape: str, fault: str, steps: int = 0, recorded: bool = True, again: bool = False) -> Run:
        """The existing run of a case, or a new one with ``again``."""
        steps = steps or (SOUND_STEPS if fault == NOTHING else STEPS)
        spec = Spec(shape, fault, "", steps, recorded)
        if again or spec not in self._done:
            self._done[spec] = self._train(spec)
        return self._done[spec]

    def _train(self, spec: Spec) -> Run:
        spec = replace(spec, folder=str(self.folder / f"{next(self._numbers)}-{spec.name}"))
        if self._names:
            where = {"namespaces": self._names, "address": links.address(0), "interface": links.INTERFACE}
            spec = replace(spec, **where)
        wait_for_quiet()
        with self._link(spec), Stolen() as stolen:
            self._run(spec)
        return Run(spec, read_logs(spec), stolen.share)

    def _run(self, spec: Spec) -> None:
        """Trains to the end. Raises RuntimeError with the ranks' errors if one fails."""
        words = (str(Path(__file__).with_name("job.py")), spec.dump(), meeting(RANKS)["MASTER_PORT"])
        process = self.forks.start(words, spec.output, recorded=False)
        try:
            status = process.wait(LIMIT_SECONDS)
        finally:
            process.kill()  # and the ranks, if one of them has failed
        if status:
            raise RuntimeError(f"{spec.name}: {(spec.output / 'stderr').read_text()[-8000:]}")

    @contextlib.contextmanager
    def _link(self, spec: Spec) -> Iterator[None]:
        if spec.fault != LINK:
            yield
            return
        shape = SHAPES[spec.shape]
        with links.slow_cable(shape.link, shape.bits_per_second):
            yield
