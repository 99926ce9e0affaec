"""Why one rank does not enter the collective in which others wait for it: what it does, and whether it works."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from ..ledger.causes import PHASE_ROW, STEP_BUCKETS_SECONDS
from ..ledger.reader import Ledger
from .ends import end_of, not_exited
from .facts import DOES, Facts, Process, Thread
from .failures import sentence
from .hang import open_seconds
from .stuck import stuck_at

WORKING_PATIENCE_SECONDS = 1800.0
"""For how long a rank whose process works may stay in a phase before it counts as hung. See `patience` of Phase."""
_LONGEST_STEP_SECONDS = 600.0

_ENDS = {"killed": "was killed, or crashed", "failed": "ended with an error", "ended": "has ended"}
_KERNEL: tuple[tuple[str, str, str], ...] = (
    ("futex", "lock", "waits for a lock or for another thread"),
    ("nanosleep", "sleep", "sleeps"),
)
"""Part of the name of a function in the kernel -> the kind of wait, and its description."""


class Reason(NamedTuple):
    """What keeps a rank."""

    kind: str
    """stopped, killed, failed, ended, worker, lock, sleep, or the phase that it is in."""
    text: str
    """Continues a sentence that begins with the rank."""
    patience: float
    """The rank counts as hung if others have waited longer than this for it, in seconds, ..."""
    lasted: float = inf
    """... and if this has lasted for longer: a rank that has just entered its phase goes on."""


def reason_of(ledger: Ledger, facts: Facts, now_ns: int, after: float) -> Reason:
    """Why a rank that does not wait for others keeps them waiting. ``after``: the least wait that may be a hang."""
    if not ledger.alive:
        said = sentence(ledger) if (end := end_of(ledger)) == "failed" else ""
        return Reason(end, _ENDS[end] + said, after)
    process = facts.process
    if process is not None and process.stopped:
        return Reason("stopped", f"{_halted(process)}{_since(ledger, now_ns)}", after)
    phase = ledger.position.phase
    if phase == "shutdown":
        lasted, text = open_seconds(ledger, now_ns), not_exited(ledger, now_ns)
        if ledger.strings["failure"]:
            return Reason("failed", text, after, lasted)
        return Reason(phase, text, max(after, _patience(ledger, phase, facts)), lasted)
    if phase.startswith("data") and (halted := halted_worker(facts)):
        return Reason("worker", f"{PHASE_ROW[phase].does}{_since(ledger, now_ns)}, and {halted}", after)
    kind, kernel = _in_kernel(phase, process)
    if not ledger.window_ns:
        kind = "startup"
    does = PHASE_ROW["startup" if kind == "startup" else phase].does
    if facts.owing is not None:
        kernel = f": its worker {facts.owing.pid}, which owes the batch, {DOES[facts.owing.does]}"
    text = f"{does}{_since(ledger, now_ns)}{_at_line(ledger)}{kernel}"
    lasted = open_seconds(ledger, now_ns)
    return Reason(kind, text + _gpu(facts), max(after, _patience(ledger, phase, facts)), lasted)


def not_begun(process: Process, after: float) -> Reason:
    """Why a rank without a ledger does not begin."""
    text = "has not begun its first step (it has no ledger yet)"
    if process.stopped or process.ended:
        return Reason(
            "stopped" if process.stopped else "ended",
            f"{text}: it {_halted(process) if process.stopped else 'has ended'}",
            after,
        )
    patience = WORKING_PATIENCE_SECONDS if process.works else PHASE_ROW["compute"].patience
    return Reason("startup", text + _in_kernel("startup", process)[1], after if process.works is False else patience)


def halted_worker(facts: Facts) -> str:
    """A data worker that cannot deliver a batch; empty if there is none."""
    for worker in facts.workers:
        if worker.stopped:
            return f"its worker {worker.pid} {_halted(worker)}"
        if worker.ended:
            return f"its worker {worker.pid} has ended"
    if facts.owing is not None and facts.owing.does in ("gone", "stopped"):
        return f"its worker {facts.owing.pid} {DOES[facts.owing.does]}"
    return ""


def usual_seconds(ledger: Ledger) -> float:
    """An upper bound of the longest step that this rank has made so far."""
    made = [at for at, count in enumerate(ledger.words["step_buckets"]) if count]
    if not made:
        return 0.0
    return STEP_BUCKETS_SECONDS[made[-1]] if made[-1] < len(STEP_BUCKETS_SECONDS) else _LONGEST_STEP_SECONDS


def _patience(ledger: Ledger, phase: str, facts: Facts) -> float:
    # A host that waits for its device may spin or sleep. Neither says whether the device works.
    works = facts.process.works if facts.process is not None and not ledger.device_phase else None
    if facts.owing is not None and facts.owing.does == "running":
        works = True
    if works is False:
        return usual_seconds(ledger)
    if works:
        return WORKING_PATIENCE_SECONDS
    return max(PHASE_ROW[phase].patience, usual_seconds(ledger))


def _halted(process: Process) -> str:
    return "is stopped by a debugger" if process.state == "t" else "is stopped by a signal"


def _in_kernel(phase: str, process: Process | None) -> tuple[str, str]:
    """The kind of wait, and a clause about the training thread."""
    main = process.main if process is not None else None
    if process is None or main is None or process.state == "R":
        return phase, ""
    for part, kind, text in _KERNEL:
        if part in main.wchan:
            return (kind if PHASE_ROW[phase].own_code else phase), f": its training thread {text}"
    return phase, _blocked(main)


def _blocked(main: Thread) -> str:
    if main.state == "D":
        return f": its training thread waits for a disk or a file server, in {main.wchan or 'the kernel'}"
    where = waits_in(main)
    return f": its training thread is blocked in {where}" if where else ""


def waits_in(thread: Thread) -> str:
    """Where a thread waits; empty if it is not known."""
    if not thread.wchan:
        return thread.syscall
    return f"{thread.wchan} (system call {thread.syscall})" if thread.syscall else thread.wchan


def _since(ledger: Ledger, now_ns: int) -> str:
    return f" (for {open_seconds(ledger, now_ns):.1f} s)"


def _at_line(ledger: Ledger) -> str:
    where = stuck_at(ledger)
    return f", at {where}" if where else ""


def _gpu(facts: Facts) -> str:
    return "" if facts.gpu_busy is None else f"; its GPU is busy {facts.gpu_busy:.0%} of the time"
