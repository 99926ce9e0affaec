"""Where the training thread of a rank is while a phase lasts long, and for what it may wait. Pure functions."""

from __future__ import annotations

from ..ledger.reader import Ledger
from ..ledger.threads import AWAITS_THREADS, RAISED, RUNS, Other, threads_of


def is_fresh(ledger: Ledger) -> bool:
    """Whether what looks have found is of the phase that is open, or was at the end."""
    return bool(ledger.stuck_since_ns) and ledger.stuck_since_ns >= ledger.phase_since_ns


def stuck_line(ledger: Ledger) -> str:
    """`FILE:LINE FUNCTION` of the training's own code; empty if it is not known."""
    return ledger.strings["stuck_line"] if is_fresh(ledger) else ""


def stuck_at(ledger: Ledger) -> str:
    """The same, with the function that it has called there, and what is known of other threads."""
    return place_of(ledger) if is_fresh(ledger) else ""


def place_of(ledger: Ledger) -> str:
    """The same, of the phase that has lasted long most recently."""
    line, call, others = ledger.strings["stuck_line"], ledger.strings["stuck_call"], _others(ledger)
    return f"{line}{f', in {call}' if call else ''}{f' ({others})' if others else ''}" if line else ""


def waits_for(ledger: Ledger) -> str:
    """What is known of other threads for which it may wait."""
    return _others(ledger) if is_fresh(ledger) else ""


def awaits_threads(ledger: Ledger) -> bool:
    """Whether it waits in a function of the standard library that waits for other threads, or for what they make."""
    return is_fresh(ledger) and ledger.strings["stuck_call"].partition(".")[0] in AWAITS_THREADS


def _others(ledger: Ledger) -> str:
    return ", ".join(map(_told, threads_of(ledger.strings["stuck_threads"])))


def _told(thread: Other) -> str:
    who = f"its thread {thread.name}"
    if thread.kind == RUNS:
        return f"{who} is at {thread.place}"
    if thread.kind == RAISED:
        return f"{who} has ended with {thread.type}{f' at {thread.place}' if thread.place else ''}"
    return f"{who} has ended"
