"""Collects the dossier of a hang: who is in which collective, who is not, and what each rank does.

Every source is optional and has its own deadline. A source that is absent is named, with what to do about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar

from ...ledger.clock import own_clock
from ...ledger.directory import Run, age, run_of
from ...ledger.reader import Ledger, LedgerError, read_ledger
from ...verdict.diagnosis import AFTER_SECONDS, Diagnosis, diagnose, diagnose_afterwards
from ...verdict.ends import end_of
from ...verdict.facts import NOTHING, Facts, Process
from ...verdict.unhooked import diagnose_processes
from ..parsers import ras as ras_format
from ..processes.descendants import Descendants
from ..processes.owing import owing_to
from ..processes.rank_pids import RankPids
from . import connections, entries, node, ras, recorder, stacks, strays
from .later import Later
from .processes import Watch
from .strays import Stray

T = TypeVar("T")
WATCH_SECONDS = 0.5
RAS_SECONDS = 10.0
FIND_SECONDS = 3.0
METRICS_SECONDS = 5.0
STACK_SECONDS = 5.0
DUMP_SECONDS = 1.0
MOST_STACKS = 4
MOST_WORKERS = 32


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to collect."""

    procfs: str = "/proc"
    after: float = AFTER_SECONDS
    """Shorter waits do not count as a hang. In seconds."""
    pid: int = 0
    """A process of the run, to find it without ledgers. 0: the run with most ranks here."""
    ras_address: str = ""
    """host:port; empty: NCCL is not asked."""
    log: str = "/dev/kmsg"
    """The kernel's log."""
    metrics: Callable[[], str] | None = None
    """Returns the exposition of this node's agent. May raise an exception with a sentence."""
    stacks: bool = True
    dumps: bool = True
    """Whether to ask torch's flight recorder for a dump."""
    progress: Callable[[str, float], None] = lambda part, done: None


@dataclass(slots=True)
class _Seen:
    """What was found about processes: rank -> pid, and so on."""

    pids: dict[int, int] = field(default_factory=dict)
    jobs: list[Stray] = field(default_factory=list)
    workers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)


def collect(run: Run | None, ledgers: Iterable[Ledger], wanted: Wanted) -> dict[str, Any]:
    """The dossier of a run as JSON. ``run``: None if there is no ledger. ``ledgers`` may be of any run."""
    newest = newest_of(run, ledgers)
    here = [ledger for ledger in newest if ledger.strings["boot"] in ("", own_clock().boot)]
    wanted.progress("looking at processes", 0.0)
    asked = Later("NCCL's RAS service", lambda: _ask_ras(wanted.ras_address)) if wanted.ras_address else None
    first = Later("the agent's counters", lambda: _look(wanted))
    logged = Later("the times of XIDs", lambda: node.xids(wanted.log))
    absent: list[str] = []
    answer = asked.result(RAS_SECONDS, absent) if asked is not None and not newest else None
    over = run[1] if run is not None and newest and not any(one.alive for one in newest) else ""
    seen = _find(here, wanted, _pids_of(answer), over)
    seen.absent += absent
    watched = [*seen.pids.values(), *(pid for workers in seen.workers.values() for pid in workers)]
    watch = Watch(wanted.procfs, watched)
    time.sleep(WATCH_SECONDS)
    processes = watch.processes()
    before = first.result(METRICS_SECONDS, seen.absent)
    second = Later("the agent's counters", lambda: _look(wanted))
    after = second.result(METRICS_SECONDS, seen.absent) if before is not None else None
    counters = node.between(before, after) if before is not None and after is not None else node.Node()
    xids = logged.result(FIND_SECONDS, seen.absent) or []
    wanted.progress("asking NCCL", 0.5)
    if asked is not None and newest:
        answer = asked.result(RAS_SECONDS, seen.absent)
    status, stands_still = answer or (None, False)
    if asked is not None and status is None:
        seen.absent.append(f"NCCL's RAS service does not answer at {wanted.ras_address} (NCCL 2.24 and later have it)")
    facts = {rank: _facts(rank, seen, processes, counters, newest, status, wanted) for rank in _ranks(newest, seen)}
    diagnosis = _diagnosis(newest, facts, seen, status, stands_still, wanted)
    by_rank = {ledger.rank: ledger for ledger in newest}
    told = [entries.rank(one, by_rank.get(one), facts.get(one, NOTHING)) for one in sorted({*facts, *by_rank})]
    _add_stacks(told, diagnosis, seen, wanted)
    _add_recorders(told, diagnosis, seen, wanted)
    return entries.dossier(
        run,
        diagnosis,
        told,
        counters,
        xids,
        status,
        [*dict.fromkeys(seen.absent)],
        datetime.now(timezone.utc).isoformat(),
    )


def newest_of(run: Run | None, ledgers: Iterable[Ledger]) -> list[Ledger]:
    """The ledger of the newest attempt of each rank of a run."""
    found: dict[int, Ledger] = {}
    for ledger in sorted((one for one in ledgers if run_of(one) == run), key=age):
        found[ledger.rank] = ledger
    return [found[rank] for rank in sorted(found)]


# -- sources


def _pids_of(answer: tuple[ras_format.Status | None, bool] | None) -> set[int]:
    """The processes that NCCL names."""
    communicators = answer[0].communicators if answer is not None and answer[0] is not None else ()
    return {one.pid for comm in communicators for one in (*comm.ranks, *comm.missing)}


def _find(ledgers: list[Ledger], wanted: Wanted, pids: set[int], over: str) -> _Seen:
    """``pids``: those of the run, if it has no ledgers. ``over``: the name of the run if it has, and no rank with one
    is alive. A later attempt gets its ledgers with its first batch, step or collective."""
    seen = _Seen()
    live = [ledger for ledger in ledgers if ledger.alive]
    found = Later("processes of ranks", lambda: RankPids(wanted.procfs).find(live)).result(FIND_SECONDS, seen.absent)
    seen.pids = {ledger.rank: pid for ledger, pid in zip(live, found or [], strict=False) if pid}
    if hidden := [ledger.rank for ledger in live if ledger.rank not in seen.pids]:
        seen.absent.append(
            f"the processes of {len(hidden)} ranks are not visible here: run this on their node, in the pid namespace "
            "of the host, as root or as their user"
        )
    jobs = Later("ranks without ledgers", lambda: strays.find(wanted.procfs)).result(FIND_SECONDS, seen.absent) or []
    if over:
        ended = {ledger.pid for ledger in ledgers}
        seen.jobs = strays.job_of([one for one in jobs if one.run == over and one.pid not in ended])
    else:
        seen.jobs = strays.of_jobs(jobs, seen.pids.values()) if ledgers else strays.job_of(jobs, pids or _given(wanted))
    for stray in seen.jobs:
        seen.pids.setdefault(stray.rank, stray.pid)
    below = Later("data workers", lambda: Descendants(wanted.procfs).of(seen.pids.values()))
    workers = below.result(FIND_SECONDS, seen.absent) or {}
    for rank, pid in seen.pids.items():
        if isinstance(some := workers.get(pid), tuple):
            seen.workers[rank] = some[:MOST_WORKERS]
    return seen


def _given(wanted: Wanted) -> set[int]:
    return {wanted.pid} if wanted.pid else set()


def _look(wanted: Wanted) -> node.Look | None:
    if wanted.metrics is None:
        raise LookupError("no agent was asked")
    return node.look(wanted.metrics())


def _ask_ras(address: str) -> tuple[ras_format.Status | None, bool]:
    """NCCL's status, and whether its counts stand still. Ranks that are only slower differ for a moment, too."""
    status = ras.ask(address)
    communicator = ras_format.largest(status) if status is not None else None
    if communicator is None or communicator.missing or not ras_format.behind(communicator):
        return status, True
    time.sleep(1.0)
    again = ras.ask(address)
    return again or status, again is not None and again.communicators == status.communicators if status else False


def _ranks(newest: list[Ledger], seen: _Seen) -> list[int]:
    return sorted({*(ledger.rank for ledger in newest), *seen.pids})


def _facts(
    rank: int,
    seen: _Seen,
    processes: dict[int, Process],
    counters: node.Node,
    newest: list[Ledger],
    status: ras_format.Status | None,
    wanted: Wanted,
) -> Facts:
    pid = seen.pids.get(rank)
    if pid is None:
        return NOTHING
    stuck, addresses = connections.of(wanted.procfs, pid)
    ledger = next((ledger for ledger in newest if ledger.rank == rank and ledger.alive), None)
    below = seen.workers.get(rank, ())
    return Facts(
        process=processes.get(pid),
        workers=tuple(processes[worker] for worker in below if worker in processes),
        owing=owing_to(ledger, pid, below, wanted.procfs) if ledger is not None else None,
        connections=stuck,
        addresses=addresses,
        gpu_busy=_gpu_of(rank, pid, counters, newest, status),
    )


def _gpu_of(
    rank: int, pid: int, counters: node.Node, newest: list[Ledger], status: ras_format.Status | None
) -> float | None:
    """How busy the GPU of a rank is: by its ledger, or by what NCCL says about its process."""
    uuids = {ledger.strings["uuid"] for ledger in newest if ledger.rank == rank and ledger.device != "cpu"}
    known = [*(one for comm in status.communicators for one in (*comm.ranks, *comm.missing))] if status else []
    numbers = {str(one.nvml_dev) for one in known if one.pid == pid}
    return next((gpu.busy for gpu in counters.gpus if gpu.uuid in uuids or gpu.gpu in numbers), None)


def _with_steps(ledger: Ledger) -> Ledger:
    if end_of(ledger) != "failed":
        return ledger
    try:
        return read_ledger(ledger.path, steps=True)
    except LedgerError:  # it has been deleted since
        return ledger


def _diagnosis(
    newest: list[Ledger],
    facts: dict[int, Facts],
    seen: _Seen,
    status: ras_format.Status | None,
    stands_still: bool,
    wanted: Wanted,
) -> Diagnosis:
    communicator = ras_format.largest(status) if status is not None and stands_still else None
    behind = {one.rank: one.why for one in ras_format.behind(communicator)} if communicator is not None else {}
    if not newest:
        return diagnose_processes(facts, strays.gone(seen.jobs), behind)
    if not any(ledger.alive for ledger in newest):
        before = diagnose_afterwards([_with_steps(ledger) for ledger in newest], wanted.after)
        if not seen.jobs:
            return before
        alive = "Processes of this run are alive that have no ledgers, perhaps of a later attempt"
        if before.hung:  # they may be what is left of it
            return replace(before, sentence=f"{before.sentence}. {alive}")
        later = diagnose_processes(facts, strays.gone(seen.jobs), behind)
        return replace(later, sentence=f"{alive}. {later.sentence}. Before: {before.sentence}")
    found = diagnose(newest, facts, time.monotonic_ns(), wanted.after)
    world = max(ledger.world_size for ledger in newest)
    unknown = [culprit.rank for culprit in found.culprits if culprit.kind == "no_ledger"]
    named = {rank: behind[rank] for rank in unknown if rank in behind}
    if not named or communicator is None or communicator.size != world:
        return found
    by_nccl = diagnose_processes({}, (), named)
    return replace(by_nccl, seconds=found.seconds, collective=found.collective)


# -- what only suspects are asked for


def _suspects(diagnosis: Diagnosis, seen: _Seen) -> list[int]:
    """The culprits, and one rank that waits, to compare with."""
    culprits = [culprit.rank for culprit in diagnosis.culprits if culprit.rank in seen.pids]
    others = [rank for rank in sorted(seen.pids) if rank not in culprits]
    return [*culprits[: MOST_STACKS - 1], *others[:1]]


def _add_stacks(told: list[dict[str, Any]], diagnosis: Diagnosis, seen: _Seen, wanted: Wanted) -> None:
    if not wanted.stacks:
        return
    program = stacks.installed()
    if program is None:
        seen.absent.append(stacks.ABSENT)
        return
    suspects = _suspects(diagnosis, seen)
    for done, rank in enumerate(suspects):
        wanted.progress("taking stacks", done / len(suspects))
        pid = seen.pids[rank]
        if not stacks.may_read(wanted.procfs, pid):
            seen.absent.append(f"stack of rank {rank}: only its user and root may take it")
            continue
        lines, why = stacks.of(pid, STACK_SECONDS, program)
        if why:
            seen.absent.append(f"stack of rank {rank}: {why}")
        for entry in told:
            if entry["rank"] == rank:
                entry["stack"] = lines


def _add_recorders(told: list[dict[str, Any]], diagnosis: Diagnosis, seen: _Seen, wanted: Wanted) -> None:
    found = _each(seen.pids, lambda rank: recorder.of(wanted.procfs, seen.pids[rank], rank), seen)
    on = {rank: one for rank, one in found.items() if one is not None and one.on}
    if not on:
        if seen.pids:
            seen.absent.append(recorder.OFF)
        return
    said: dict[int, str | None] = {}
    if wanted.dumps and diagnosis.hung:
        said = _each(on, lambda rank: recorder.ask(on[rank]), seen)
        if recorder.ASKED in said.values():
            time.sleep(DUMP_SECONDS)
    shown = _each(on, lambda rank: entries.flight_recorder(on[rank], said.get(rank) or ""), seen)
    for entry in told:
        entry["flight_recorder"] = shown.get(entry["rank"])


def _each(ranks: Iterable[int], function: Callable[[int], T], seen: _Seen) -> dict[int, T | None]:
    """The result for each rank. A rank in the kernel may not let others see its memory, and its files may be on a file
    system that does not answer: the other ranks are asked at the same time."""
    asked = {rank: Later(f"flight recorder of rank {rank}", partial(function, rank)) for rank in ranks}
    until = time.monotonic() + FIND_SECONDS
    return {rank: one.result(until - time.monotonic(), seen.absent) for rank, one in asked.items()}
