"""Ranks that the kernel killed because memory ran out: what confirms it, and how their memory grew. Pure functions."""

from __future__ import annotations

import signal
from itertools import pairwise

from ..ledger.given import MEMORY_OF
from ..ledger.layout import CLEAN, FAILED, INTERRUPTED
from ..ledger.reader import Ledger

EVIDENCE = ("log", "count", "limit")
"""See `evidence`. The surest comes first."""
NEAR = 0.9
"""A rank that was killed without a known reason may have been killed for its memory if this share of the limit was in
use at its last look. Looks are up to eight seconds apart."""
GREW = 0.1
"""Growth is mentioned if it is at least this share of what was in use at the end."""
JUMP = 0.5
"""Memory has jumped if at least this share of its growth was within one of the last intervals between looks."""
STEADY = 0.75
"""Memory grows steadily if it rose in at least this share of the intervals."""
_LEAST_VALUES = 4
_SILENT_NS = 2_000_000_000
"""How long before the end the last sign of life may have been."""
_MIB, _GIB = 1 << 20, 1 << 30


def evidence(ledger: Ledger) -> str:
    """How it is known that memory ran out when this rank was killed; empty if that is not known.

    `log`: the kernel's log names its process. `count`: the kernel has killed processes of its control group at that
    time. `limit`: only that its memory was near its limit.
    """
    if ledger.alive or ledger.ended in (CLEAN, FAILED, INTERRUPTED) or ledger.exited or ledger.has_returned:
        return ""
    if ledger.oom is not None and (ledger.oom.itself or ledger.oom.evidence == "count"):
        return ledger.oom.evidence
    if ledger.oom is None and ledger.memory_limit_bytes and _share(ledger) >= NEAR:
        return "limit"
    return ""


def has_run_out(ledger: Ledger) -> bool:
    """Whether the kernel killed the rank, a data worker or another process of its control group for its memory, or may
    have killed the rank for that."""
    return bool(evidence(ledger) or worker_sentence(ledger) or ledger.oom is not None)


def how(ledger: Ledger) -> str:
    """What follows `was killed`, for a rank with evidence."""
    found = evidence(ledger)
    if found == "log":
        return f" by the kernel: {reached(ledger)}"
    if found == "count":
        return f" when the kernel killed processes of its control group: {reached(ledger)}"
    return (
        f", or crashed: {_whose(ledger)} was at {100 * _share(ledger):.0f} % of"
        f" {'its limit of ' if _of(ledger) != 'node' else ''}{size(ledger.memory_limit_bytes)} at its last look"
    )


def reached(ledger: Ledger) -> str:
    """What ran out, for example `its control group reached its limit of 900 MiB`."""
    oom = ledger.oom
    if oom is not None and oom.of_node:
        return "the memory of the node ran out"
    limit = oom.limit if oom is not None and oom.limit else ledger.memory_limit_bytes
    if _of(ledger) == "node" and not (oom is not None and oom.limit):
        return "memory ran out"  # it was not near a limit when it was last looked at
    return f"{_whose(ledger)} reached its limit of {size(limit)}" if limit else "memory ran out"


def growth(ledger: Ledger) -> str:
    """How the memory grew before the end, as a sentence; empty if it did not, or if that is not known."""
    seen = trail(ledger)
    if not seen:
        return ""
    until, last = seen[-1]
    since, before = min(seen, key=lambda one: (one[1], -one[0]))
    rises = [(done[1] - begun[1], begun, done) for begun, done in pairwise(seen) if begun[0] >= since]
    rise = last - before
    largest, begun, done = max(rises, key=lambda one: one[0], default=(0, seen[0], seen[0]))
    steady = len(rises) >= _LEAST_VALUES - 1 and sum(change > 0 for change, *_ in rises) >= STEADY * len(rises)
    limit = ledger.oom.limit if ledger.oom is not None else 0
    unseen = max(0, ledger.last_sign_ns - ledger.memory_at_ns) + _SILENT_NS
    soon = last + (unseen * rise / (until - since) if steady else 0.0)
    if limit and max(last, soon) < (1 - GREW) * limit:
        within = _time(unseen)
        return (
            f"it used {size(last)} at its last look, so the rest came within {within}: a large allocation, or several"
        )
    if rise < GREW * last:
        return ""
    if largest >= JUMP * rise and done in seen[-2:] and len(rises) > 1:
        within = _time(done[0] - begun[0])
        return (
            f"its memory rose from {size(begun[1])} to {size(done[1])} within {within}: a large allocation, or several"
        )
    said = f"its memory grew from {size(before)} to {size(last)} in {_time(until - since)}"
    return f"{said}, step by step: does it keep what it no longer needs?" if steady else said


def trail(ledger: Ledger) -> list[tuple[int, int]]:
    """(ns since its start, bytes) over the life of a rank, oldest first; the last one is the last look."""
    words = ledger.words
    seen = [one for one in zip(words["memory_trail_ns"], words["memory_trail_bytes"], strict=True) if one[0]]
    last = ledger.memory_at_ns - ledger.start_ns, ledger.memory_used_bytes
    return sorted([*seen, last] if ledger.memory_at_ns and last[0] > max(seen, default=(0, 0))[0] else seen)


def worker_sentence(ledger: Ledger) -> str:
    """Why SIGKILL ended a data worker of this rank; empty if that is not known."""
    if ledger.dead_worker_signal != signal.SIGKILL or not 0 < ledger.oom_kills_before < ledger.oom_kills:
        return ""
    return f" by the kernel: {reached(ledger)}"


def others_sentence(ledger: Ledger) -> str:
    """Which other processes of the rank's control group the kernel has killed, while the rank lived on."""
    oom = ledger.oom
    if oom is None or oom.itself or worker_sentence(ledger) or evidence(ledger) == "count":
        return ""
    who = " and ".join(oom.others) or "a process"
    return f"the kernel killed {who} in the control group of rank {ledger.rank}: {reached(ledger)}"


def size(number: int) -> str:
    """Bytes, as people set limits: `900 MiB`, `64 GiB`."""
    if number < 10 * _GIB and number % _GIB:
        return f"{number / _MIB:.0f} MiB"
    return f"{number / _GIB:.0f} GiB" if number >= 100 * _GIB or not number % _GIB else f"{number / _GIB:.1f} GiB"


def _share(ledger: Ledger) -> float:
    return ledger.memory_used_bytes / ledger.memory_limit_bytes


def _of(ledger: Ledger) -> str:
    return MEMORY_OF[ledger.memory_of] or "node"


def _whose(ledger: Ledger) -> str:
    return {"above": "a control group above its own", "node": "the memory of its node"}.get(
        _of(ledger), "its control group"
    )


def _time(ns: int) -> str:
    seconds = ns / 1e9
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
