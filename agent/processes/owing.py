"""Looks at the data workers for which ranks wait now. They can be seen only on the node of their rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ledger.directory import Run, run_of
from ...ledger.doing import doing, start_ticks, state
from ...ledger.reader import Ledger
from ...verdict.facts import Owing
from ..files import Unreadable, read
from ..parsers import pidstat

_STATES = {"R": "running", "D": "read"}
"""The state of a process whose system call may not be looked at -> one of DOING. In `D` it waits for a disk."""


def owing(run: Run, ledgers: Sequence[Ledger], proc: str = "/proc") -> dict[int, str]:
    """Rank -> what the worker does that owes its batch, as one of DOES of verdict/facts.py. Ranks are left out if they
    do not wait for a worker, or if it is not known."""
    found = {ledger.rank: owing_to(ledger, ledger.visible_pid, (), proc) for ledger in ledgers if run_of(ledger) == run}
    return {rank: worker.does for rank, worker in found.items() if worker is not None}


def owing_to(ledger: Ledger, pid: int, below: Iterable[int], proc: str) -> Owing | None:
    """The worker that owes a rank its batch. ``pid``: the rank's process in this procfs. ``below``: its descendants
    there: where the rank is in another pid namespace, the pid in the ledger means another process here."""
    wanted = ledger.open_worker_pid
    if not pid or not wanted or ledger.position.phase != "data":
        return None
    worker = wanted if pid == ledger.pid else next((one for one in below if _inner_pid(one, proc) == wanted), 0)
    does = _does(worker, ledger.open_worker_start_ticks, proc) if worker else ""
    return Owing(worker, does) if does else None


def _inner_pid(pid: int, proc: str) -> int:
    """The pid of a process in its own namespace; 0 if it is not known."""
    try:
        return pidstat.identity(read(f"{proc}/{pid}/status")).pids[-1]
    except Unreadable:
        return 0


def _does(pid: int, started: int, proc: str) -> str:
    letter = state(pid, proc)
    if letter in ("", "Z", "X") or start_ticks(pid, proc) != started:
        return "gone"
    if letter in ("T", "t"):
        return "stopped"
    return doing(pid, proc) or _STATES.get(letter, "")
