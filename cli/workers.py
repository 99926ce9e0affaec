"""Looks at the data workers for which ranks wait now. They can be seen only on the node of their rank."""

from __future__ import annotations

from collections.abc import Sequence

from ..ledger.directory import Run, run_of
from ..ledger.doing import doing, start_ticks, state
from ..ledger.reader import Ledger

_STATES = {"R": "running", "D": "read"}
"""The state of a process whose system call may not be looked at -> one of DOING. In `D` it waits for a disk."""


def owing(run: Run, ledgers: Sequence[Ledger], proc: str = "/proc") -> dict[int, str]:
    """Rank -> what the worker does that owes its batch, as one of DOES of verdict/workers.py. Ranks are left out if
    they do not wait for a worker, or if it is not known."""
    found = {}
    for ledger in ledgers:
        # In another pid namespace, the pid of the worker means another process.
        if run_of(ledger) != run or not ledger.visible_pid or ledger.visible_pid != ledger.pid:
            continue
        pid = ledger.open_worker_pid
        if ledger.position.phase == "data" and pid and (does := _does(pid, ledger.open_worker_start_ticks, proc)):
            found[ledger.rank] = does
    return found


def _does(pid: int, started: int, proc: str) -> str:
    letter = state(pid, proc)
    if letter in ("", "Z", "X") or start_ticks(pid, proc) != started:
        return "gone"
    if letter in ("T", "t"):
        return "stopped"
    return doing(pid, proc) or _STATES.get(letter, "")
