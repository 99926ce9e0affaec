"""Says which rank keeps a run without ledgers: by the states of processes, by NCCL, and by how busy GPUs are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from .diagnosis import Culprit, Diagnosis
from .ends import named
from .facts import Facts, Process
from .reasons import halted_worker, waits_in

IDLE_GPU, BUSY_GPU = 0.05, 0.9


def diagnose_processes(facts: Mapping[int, Facts], gone: Collection[int], ras: Mapping[int, str]) -> Diagnosis:
    """``facts`` by rank. ``gone``: ranks whose process should be here and is not. ``ras``: rank -> what NCCL says.

    The first of these rules that finds a rank decides. Without ledgers it is not known for how long ranks wait.
    """
    for rule in (_halted, _workers, lambda facts: _gone(gone, ras), lambda facts: _told(ras), _idle_gpus):
        if culprits := rule(facts):
            return Diagnosis(True, _sentence("Hang", culprits), 0.0, culprits)
    working = [rank for rank, one in facts.items() if one.process is not None and one.process.works is not False]
    odd = _odd(facts)
    if working and len(working) == len(facts):
        return Diagnosis(False, "No hang: all processes of ranks that are visible here work")
    if odd:
        verb = "No hang yet" if working else "Hang"
        return Diagnosis(not working, _sentence(verb, odd), 0.0, odd)
    if working:
        return Diagnosis(False, f"No hang: {named(sorted(working))} still {'works' if len(working) == 1 else 'work'}")
    return Diagnosis(bool(facts), "No process of a rank works, and none differs from the others", 0.0)


def _halted(facts: Mapping[int, Facts]) -> tuple[Culprit, ...]:
    return tuple(
        Culprit(rank, "stopped" if process.stopped else "gone", _halt(process))
        for rank, one in sorted(facts.items())
        if (process := one.process) is not None and (process.stopped or process.ended)
    )


def _halt(process: Process) -> str:
    if process.ended:
        return f"has ended (process {process.pid})"
    return f"is stopped by a {'debugger' if process.state == 't' else 'signal'} (process {process.pid})"


def _workers(facts: Mapping[int, Facts]) -> tuple[Culprit, ...]:
    found = ((rank, halted_worker(replace(one, workers=_own_kind(one)))) for rank, one in sorted(facts.items()))
    return tuple(Culprit(rank, "worker", f"waits, and {text}") for rank, text in found if text)


def _own_kind(facts: Facts) -> tuple[Process, ...]:
    """Processes that this rank may wait for: those of its own program. It is normal that other programs end, and those
    that it has waited for."""
    rank = facts.process.main if facts.process is not None else None
    if rank is None or facts.process is None or facts.process.works:
        return ()
    return tuple(
        worker
        for worker in facts.workers
        if worker.stopped or (worker.state == "Z" and worker.main and worker.main.name in (rank.name, "pt_data_worker"))
    )


def _gone(gone: Collection[int], ras: Mapping[int, str]) -> tuple[Culprit, ...]:
    text = "has no process on this node, although its launcher should have started one here"
    return tuple(Culprit(rank, "gone", f"{text}; it {ras[rank]}" if rank in ras else text) for rank in sorted(gone))


def _told(ras: Mapping[int, str]) -> tuple[Culprit, ...]:
    return tuple(Culprit(rank, "ras", why) for rank, why in sorted(ras.items()))


def _idle_gpus(facts: Mapping[int, Facts]) -> tuple[Culprit, ...]:
    """Ranks that wait in NCCL keep their GPU busy: the rank that they wait for does not."""
    busy = {rank: one.gpu_busy for rank, one in sorted(facts.items()) if one.gpu_busy is not None}
    idle = [rank for rank, share in busy.items() if share <= IDLE_GPU]
    if not idle or 2 * len(idle) > len(busy) or any(IDLE_GPU < share < BUSY_GPU for share in busy.values()):
        return ()
    return tuple(Culprit(rank, "gpu", "has an idle GPU, and the GPUs of the other ranks are busy") for rank in idle)


def _odd(facts: Mapping[int, Facts]) -> tuple[Culprit, ...]:
    """The ranks whose training thread waits elsewhere than those of most ranks."""
    does = {rank: _does(one.process) for rank, one in sorted(facts.items()) if one.process is not None}
    votes = Counter(does.values()).most_common(2)
    if len(votes) < 2:
        return ()
    if votes[0][1] == votes[1][1]:  # of two ranks, the one that does not wait for a lock or a message
        waits = [rank for rank, what in does.items() if not _is_wait(what)]
        return tuple(_differs(rank, does[rank]) for rank in waits) if len(waits) < len(does) else ()
    return tuple(_differs(rank, what) for rank, what in does.items() if what != votes[0][0])


def _differs(rank: int, does: str) -> Culprit:
    return Culprit(rank, "odd", f"does something else than the other ranks: its training thread {does}")


def _does(process: Process) -> str:
    main = process.main
    if process.works and process.state != "D":
        return "runs"
    if main is None or not main.wchan:
        return f"is in state {process.state or 'unknown'}"
    return f"is blocked in {waits_in(main)}"


def _is_wait(does: str) -> bool:
    return any(part in does for part in ("futex", "poll", "recv", "sk_wait"))


def _sentence(verb: str, culprits: tuple[Culprit, ...]) -> str:
    by_text: dict[str, list[int]] = {}
    for culprit in culprits:
        by_text.setdefault(culprit.text, []).append(culprit.rank)
    return f"{verb}: " + "; ".join(f"{named(ranks)} {text}" for text, ranks in by_text.items())
