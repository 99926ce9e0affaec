"""Finds missing ranks: those that have not entered a collective in which other ranks of their run already wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..ledger.causes import WORK_PHASES
from ..ledger.directory import run_of
from ..ledger.failures import failure_of
from ..ledger.layout import FAILED
from ..ledger.reader import Ledger, Slot

NO_SIGN_SECONDS = 10.0
"""A live rank leaves a heartbeat at least this often. Without one, what it was in may be older than what it does."""
HANG_SECONDS = 5.0
"""A report names the missing ranks when a wait in a collective has been open for longer than this."""

IDLE = 0.9
"""A process that computed nothing in this share of a time hardly computed."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The rank of ``ledger`` has not entered a collective in which the ``waiting`` ranks wait."""

    ledger: Ledger
    waiting: tuple[Ledger, ...]  # the longest wait first
    seconds: float  # the longest wait
    silent: float = 0.0
    """For how long the missing rank has given no sign of life; 0: it lives, or has ended."""


def open_seconds(ledger: Ledger, now_ns: int) -> float:
    """How long the rank has been in its open phase."""
    return max(0.0, (now_ns - ledger.position.since_ns) / 1e9)


def silent_seconds(ledger: Ledger, now_ns: int) -> float:
    """How long a live rank has given no sign of life; 0 if not for long. It is stopped, or code of it holds Python's
    lock."""
    silent = (now_ns - ledger.last_sign_ns) / 1e9
    return silent if ledger.alive and ledger.heartbeat_ns and silent > NO_SIGN_SECONDS else 0.0


def unbooked_seconds(ledger: Ledger, end_ns: int) -> float:
    """How much of the open phase is in the window and not in the ledger's sums yet."""
    return (end_ns - max(ledger.position.since_ns, ledger.until_ns, ledger.window_ns)) / 1e9


def open_blocked(ledger: Ledger, seconds: float) -> float:
    """The part of ``seconds`` of its open phase in which a CPU rank was blocked in its own code, by looks at it.

    What its process computed meanwhile may have been for it. A process that hardly computed was blocked all the time
    if half of the looks say so: there are few of them. If fewer do, it was waiting for a CPU in the others.
    """
    looks, blocked, cpu = _own_looks(ledger)
    if not looks:
        return 0.0
    idle = seconds - cpu
    if idle > IDLE * seconds and 2 * blocked >= looks:
        return idle
    return max(0.0, min(seconds * min(1.0, blocked / looks), idle))


def open_computed(ledger: Ledger, seconds: float) -> float:
    """At most how many of ``seconds`` of its open phase the training thread of a CPU rank had a CPU in its own code: as
    long as its process has computed, and not while looks found it blocked."""
    looks, blocked, cpu = _own_looks(ledger)
    return min(seconds * max(0.0, 1 - blocked / looks), cpu) if looks else 0.0


def _own_looks(ledger: Ledger) -> tuple[int, int, float]:
    """The looks in the open phase of a CPU rank, how many of them found its training thread blocked, and the CPU
    seconds of its process since the phase began. Zeros if it is not in its own code."""
    fresh = ledger.stuck_since_ns and ledger.stuck_since_ns >= ledger.phase_since_ns
    if ledger.device != "cpu" or ledger.position.phase not in (*WORK_PHASES, "host") or not fresh:
        return 0, 0, 0.0
    looks, blocked, cpu_ns = (ledger.words[name][0] for name in ("open_looks", "open_blocked_looks", "open_cpu_ns"))
    return looks, blocked, cpu_ns / 1e9


def failed_wait(ledger: Ledger) -> int | None:
    """The slot in which a rank waited for long before torch raised the error that ended it; None if it is not known.

    Torch raises one after a time limit, or when a rank has left. On an accelerator, the last call may not be in the
    ledger yet.
    """
    if ledger.ended != FAILED or ledger.device != "cpu" or not ledger.calls:
        return None
    failure, last = failure_of(ledger.strings["failure"]), ledger.calls[-1]
    of_torch = failure is not None and failure.type.startswith(("RuntimeError", "torch.Dist"))
    return last.slot if of_torch and last.ns > HANG_SECONDS * 1e9 else None


def missing_ranks(newest: Iterable[Ledger], now_ns: int, *, longer_than: float) -> list[Missing]:
    """Returns the ranks for which others have waited longer than ``longer_than`` seconds.

    ``newest`` holds one ledger per rank: that of its newest attempt. Only ranks with a ledger here can be named. For
    ranks on other nodes, use their own agent or a rule that sees all nodes. A rank that waits in a collective itself is
    not named here: see diagnosis.py.
    """
    ledgers = list(newest)
    waiters = long_waits(ledgers, now_ns, longer_than)
    found = []
    for candidate in ledgers:
        waiting = tuple(waiter for waiter in waiters if _waits_for(waiter, candidate))
        if waiting:
            found.append(
                Missing(candidate, waiting, open_seconds(waiting[0], now_ns), silent_seconds(candidate, now_ns))
            )
    return found


def long_waits(ledgers: Iterable[Ledger], now_ns: int, longer_than: float) -> list[Ledger]:
    """The live ranks that have been in their wait for longer than this, the longest wait first."""
    found = [ledger for ledger in ledgers if waits(ledger) and open_seconds(ledger, now_ns) > longer_than]
    return sorted(found, key=lambda ledger: ledger.position.since_ns)


def waits(ledger: Ledger) -> bool:
    return ledger.alive and ledger.position.phase == "collective"


def _waits_for(waiter: Ledger, candidate: Ledger) -> bool:
    return not waits(candidate) and has_not_entered(waiter, candidate)


def has_not_entered(waiter: Ledger, candidate: Ledger) -> bool:
    """Whether ``candidate`` belongs to the group in which ``waiter`` waits, and has not entered this call."""
    if run_of(candidate) != run_of(waiter) or candidate.rank == waiter.rank or candidate.rank >= waiter.world_size:
        return False
    if candidate.attempt != waiter.attempt:
        # A waiter of a newer attempt waits for this rank, which has not restarted. An older waiter proves nothing.
        return candidate.attempt < waiter.attempt
    where = open_group(waiter)
    if where is None:
        # A rank that has entered more collectives than the waiter has already left this one.
        return candidate.waits_reached <= waiter.waits_reached
    if where.pairwise:
        return False  # to wait for a message is normal in a pipeline: other stages are busy
    there = slot_in(candidate, where.key)
    if there is None:
        # Every rank is in the world. It is known to be in another group only if it has waited there before.
        return where.size == waiter.world_size
    return there.calls < where.calls


def open_group(ledger: Ledger) -> Slot | None:
    """The group in which a rank waits now; None if it is not known."""
    index = ledger.position.slot
    return next((slot for slot in ledger.slots if slot.index == index), None)


def slot_in(ledger: Ledger, key: int) -> Slot | None:
    """What a rank has recorded of the group with this key."""
    return next((slot for slot in ledger.slots if slot.key == key), None)
