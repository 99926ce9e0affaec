"""Runs the loops of `programs.py` with whyidle attached, and compares its account with Kineto and with GPM."""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import os
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch.distributed as dist

import whyidle
from whyidle.ledger.causes import CAUSES
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach, session

from .gpm import Gpm, gpm
from .kineto import Trace, recorded, share_idle
from .loops import DATA, ledgers, read_only
from .programs import PROGRAMS, Program, Round, Spans
from .reasons import REASONS
from .rig import Rig
from .rows import Row, figure, limit_of, skipped
from .waits import whyidle_report

WARM_SECONDS = 1.0
LOOK_SECONDS = 0.005
"""The period of looks here. A short run has enough of them then, and each finds what it would find in a long run."""
SAVE = ("checkpoint_write", "checkpoint_cpu", "checkpoint_read")
WORK = ("compute", "recompute")


class Share(NamedTuple):
    """What the ledger says of a part of a run, as shares of it."""

    window: tuple[int, int]
    """The part, in ns of time.time_ns(): up to where the ledger accounts."""
    causes: dict[str, float]
    empty: float
    """The share of looks that found the stream empty in compute."""
    looks: int
    active: float | None
    """The share of time in which any kernel ran, by GPM."""

    @property
    def work(self) -> float:
        """Compute, evaluations included, without what looks found idle, as in `verdict.accounts`."""
        computed = _sum(self, WORK)
        return computed - min(computed, self.empty)

    @property
    def error(self) -> float:
        return math.sqrt(self.empty * (1 - self.empty) / self.looks) if self.looks else 0.0


def loops(rig: Rig, fast: bool, wanted: Container[str]) -> Iterator[Row]:
    """Compares the busy time of each program, and its waits for data and saves, with Kineto's."""
    return of_each_program(rig, lambda name, program: _compared(rig, name, program, 1.0 if fast else 2.5), wanted)


def reasons(rig: Rig, fast: bool, wanted: Container[str]) -> Iterator[Row]:
    """The same for loops with one known reason, which the verdict has to name."""
    return of_each_program(
        rig, lambda name, program: _compared(rig, name, program, 1.0 if fast else 2.5), wanted, REASONS
    )


def of_each_program(
    rig: Rig,
    compared: Callable[[str, Program], Iterator[Row]],
    wanted: Container[str],
    programs: dict[str, Program] = PROGRAMS,
) -> Iterator[Row]:
    for name, program in programs.items():
        if name not in wanted:
            continue
        if why := _cannot_run(rig, program):
            yield skipped(name, why)
            continue
        try:
            yield from compared(name, program)
        except Exception as error:  # the other programs must still run
            yield Row(name, None, None, "", None, False, f"{type(error).__name__}: {error}"[:300])
        gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def _cannot_run(rig: Rig, program: Program) -> str | None:
    if rig.simulated:
        return "needs a GPU"
    if program.needs and importlib.util.find_spec(program.needs) is None:
        return f"{program.needs} is not installed"
    return None


def _compared(rig: Rig, name: str, program: Program, seconds: float) -> Iterator[Row]:
    spans = Spans()
    with ledgers() as folder, _more_looks():
        os.environ["WHYIDLE_DIR"], os.environ["WHYIDLE_RUN"] = str(folder), "loop"
        if not whyidle.attach():
            raise RuntimeError("whyidle.attach() refused: see stderr")
        try:
            _, step = program.make(rig, spans)
            _run(rig, step, WARM_SECONDS)
            with recorded() as trace:
                seen = _seen(lambda: _run(rig, step, seconds, gpm()))
            unseen = _seen(lambda: _run(rig, step, seconds, gpm()))
        finally:
            whyidle.detach()
        said = whyidle_report(str(folder))
        account = read_only(folder, rig.simulated)
    # How much of a copy from pageable memory the device works is not known: between nothing and all of it.
    copies = 1 - share_idle(trace.pageable, seen.window) if trace.pageable else 0.0
    yield from _rows(name, seen, trace, spans, copies)
    note = f"known: GPM; empty {unseen.empty:.1%} of {unseen.looks} looks"
    yield _close(f"{name}: busy, without Kineto", unseen.active, unseen.work, note, 2 * unseen.error, 0.0, copies)
    yield _said(name, program, said)
    yield from account.sound(name, unmeasured=False)


def _said(name: str, program: Program, report: dict[str, Any]) -> Row:
    """Whether the verdict has the family and the word that it should have."""
    verdict, (families, word) = report["verdict"], program.says
    text = json.dumps(verdict)
    ok = verdict["family"] in families.split() and word in text if families else None
    expected = f"; expected: {families} {word}".rstrip() if ok is False else ""
    advice = ", ".join(one["id"] for one in report["advice"][:2]) or "none"
    note = f"{verdict['family']} {verdict['share']:.0%}: {verdict['summary']}; advice: {advice}{expected}"
    return Row(f"{name}: verdict", None, None, "", None, ok, note)


def _rows(name: str, seen: Share, trace: Trace, spans: Spans, copies: float) -> Iterator[Row]:
    found = {"data": _sum(seen, DATA), "save": _sum(seen, SAVE)}
    note = ", ".join(f"{cause} {share:.1%}" for cause, share in seen.causes.items() if share >= 0.002)
    if not trace.busy:
        yield figure(f"{name}: busy", seen.work, "ratio", f"skipped: Kineto sees no kernels here; {note}")
        return
    busy, owed = (1 - share_idle(each, seen.window) for each in (trace.busy, trace.owed))
    note += f"; empty {seen.empty:.1%} of {seen.looks} looks; kernels and copies {busy:.1%}"
    if copies >= 0.005:
        note += f", of them from pageable memory {copies:.1%}"
    yield _close(f"{name}: busy", owed, seen.work, note, 2 * seen.error, copies)
    if seen.active is not None:
        yield _close(f"{name}: busy by GPM", owed, seen.active, "", 0.0, copies)
    for kind, share in found.items():
        if spans.found[kind] or share >= 0.005:
            idle = share_idle(trace.busy, seen.window, sorted(spans.found[kind]))
            yield _close(f"{name}: idle in {kind}", idle, share, "")


def _close(
    what: str, known: float | None, measured: float, note: str, slack: float = 0.0, less: float = 0.0, more: float = 0.0
) -> Row:
    """Whether a share is near the known one, which may be smaller by ``less`` or larger by ``more``."""
    limit = (limit_of("loops", False) or 0.0) + slack
    ok = None if known is None else known - less - limit <= measured <= known + more + limit
    return Row(what, known, measured, "ratio", limit, ok, note)


def _sum(seen: Share, causes: tuple[str, ...]) -> float:
    return sum(seen.causes[cause] for cause in causes)


def _run(rig: Rig, step: Round, seconds: float, counters: Gpm | None = None) -> float | None:
    """Returns the share of active time by GPM. The GPU updates that every 0.1 s, so the first rounds are left out."""
    begun, rounds, counting = time.monotonic(), 0, False
    while rounds < 3 or time.monotonic() < begun + seconds:
        step()
        rounds += 1
        if counters is not None and not counting and time.monotonic() > begun + 0.3:
            counters.begin()
            counting = True
    rig.synchronize()
    return counters.end() if counters is not None and counting else None


@contextmanager
def _more_looks() -> Iterator[None]:
    usual = session.DEVICE
    session.DEVICE = usual._replace(share=1.0, least=LOOK_SECONDS, most=LOOK_SECONDS)
    try:
        yield
    finally:
        session.DEVICE = usual


def _seen(run: Callable[[], float | None]) -> Share:
    before = _words()
    active = run()
    after = _words()
    begun, ended = before["accounted_ns"], after["accounted_ns"]
    epoch, wall = time.time_ns() - time.monotonic_ns(), ended - begun
    causes = {cause: (after[cause] - before[cause]) / wall for cause in CAUSES}
    made, looked = (after[name] - before[name] for name in ("looks", "looked_ns"))
    empty = (after["empty_ns"] - before["empty_ns"]) / looked if looked else 0.0
    return Share((begun + epoch, ended + epoch), causes, empty, made, active)


def _words() -> dict[str, int]:
    """Words of the ledger of this process, when its account has reached a device without work."""
    for _ in range(3):  # the second boundary notices that the device has passed the first one
        time.sleep(0.006)
        with whyidle.phase("host"):
            pass
    machine: Any = attach._session.machine
    words = machine.words
    found = {name: words[WORD_AT[name][0]] for name in ("accounted_ns", "looks", "looked_ns", "empty_ns")}
    return found | {cause: words[WORD_AT["cause_ns"][0] + index] for index, cause in enumerate(CAUSES)}
