"""Collectives that a rank had never entered when the run ended, and in which others waited for it. Pure functions.

The members of a group make their calls in the same order. So if a member has entered fewer of them than the others when
all have ended, it never entered the rest, and the others' last waits were for that member. While ranks are alive,
hang.py finds the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..ledger.causes import CAUSE, LATE_FAMILIES, OWN_CAUSES, PHASE_CAUSE, own_time
from ..ledger.layout import UNKNOWN_SLOT
from ..ledger.reader import Ledger, Slot
from .ends import end_of, ended_well, named
from .failures import sentence as failure
from .hang import HANG_SECONDS, open_blocked
from .stuck import stuck_at

Member = tuple[Ledger, Slot]
_NAMED = 4
"""For how many missing ranks a sentence says what they did."""


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a rank waited in collectives that a member never entered. Times in seconds."""

    ledger: Ledger
    closed: float
    """The part that is in the ledger's sums: the wait ended with an error."""
    open: float
    """The part that was open when the rank was killed."""
    end_ns: int

    @property
    def seconds(self) -> float:
        return self.closed + self.open


@dataclass(frozen=True, slots=True)
class Unentered:
    """The ``missing`` ranks never entered collectives of a group in which the ``waits`` were; the longest one first."""

    key: int
    missing: tuple[Ledger, ...]
    waits: tuple[Wait, ...]

    @property
    def seconds(self) -> float:
        """The longest wait."""
        return self.waits[0].seconds


def never_entered(newest: Iterable[Ledger], *, longer_than: float) -> list[Unentered]:
    """The groups in which a rank waited longer than ``longer_than`` seconds at its end for a member that never came.

    ``newest``: one ledger per rank, read with its steps. All ranks of a group must have ended, and have a ledger here.
    A rank that ended cleanly did not wait at its end. Whether it had called other collectives: see operations.py.
    """
    groups: dict[int, list[Member]] = {}
    for ledger in newest:
        for slot in ledger.slots:
            if not slot.pairwise and slot.index != UNKNOWN_SLOT:
                groups.setdefault(slot.key, []).append((ledger, slot))
    found = []
    for key, members in groups.items():
        complete = len(members) == members[0][1].size and len({ledger.attempt for ledger, _ in members}) == 1
        if not complete or any(ledger.alive for ledger, _ in members):
            continue
        least = min(slot.calls for _, slot in members)
        stuck = [(ledger, slot) for ledger, slot in members if slot.calls > least and not ended_well(ledger)]
        waits = [_last_waits(ledger, slot, slot.calls - least) for ledger, slot in stuck]
        waits.sort(key=lambda wait: -wait.seconds)
        missing = tuple(ledger for ledger, slot in members if slot.calls == least)
        # The others may notice at once that ranks have left.
        left = all(ended_well(ledger) or end_of(ledger) == "failed" for ledger in missing)
        failed = left and any(end_of(wait.ledger) == "failed" and wait.seconds > 0 for wait in waits)
        if waits and (waits[0].seconds > longer_than or failed):
            found.append(Unentered(key, missing, tuple(waits)))
    return found


def sentence(found: Unentered) -> str:
    """Who waited for which ranks when the run ended, and what these did."""
    waiting = named([wait.ledger.rank for wait in found.waits])
    missing = named([ledger.rank for ledger in found.missing])
    doing = "; ".join(_doing(ledger, found.waits[0]) for ledger in found.missing[:_NAMED])
    return f"{waiting} waited {found.seconds:.1f} s at the end in a collective that {missing} never entered: {doing}"


def _doing(missing: Ledger, wait: Wait) -> str:
    steps = f"{missing.steps} step{'' if missing.steps == 1 else 's'}"
    own, slot, dead = lateness(missing, wait)
    if dead >= wait.seconds / 2 or (end_of(missing) == "ended" and wait.seconds < HANG_SECONDS):
        if end_of(missing) == "failed" or missing.strings["failure"]:  # it may have been killed after that
            return f"rank {missing.rank} had failed after {steps}{failure(missing)}"
        if end_of(missing) == "killed":  # its last steps may not be in its ledger
            return f"rank {missing.rank} had been killed or stopped after at least {steps}"
        return f"rank {missing.rank} had ended after {steps}"
    line = stuck_at(missing)
    if slot >= 0:
        where = "another collective" if (peer := missing.open_peer_rank) < 0 else f"a send or receive with rank {peer}"
        return f"rank {missing.rank} was in {where} after {steps}{f', at {line}' if line else ''}"
    phase = missing.position.phase
    if missing.ended or phase == "shutdown":
        phase = max(own, key=lambda name: own[name], default="host")
    phase = "its own code" if line and phase == "host" else phase
    owing = missing.open_worker_pid if phase == "data" and not missing.ended else 0
    batch = f", waiting for a batch from worker {owing}" if owing else ""
    return f"rank {missing.rank} was in {phase} after {steps}{batch}{f', at {line}' if line else ''}"


def _last_waits(ledger: Ledger, slot: Slot, count: int) -> Wait:
    """The last ``count`` waits of a rank in a group."""
    phase, since_ns, open_slot = ledger.position
    is_open = not ledger.ended and phase == "collective" and open_slot == slot.index
    opened = (ledger.last_sign_ns - max(since_ns, ledger.until_ns)) / 1e9 if is_open else 0.0
    # On an accelerator, and in a killed rank, the last waits are not in the ring of calls yet.
    whole = bool(ledger.ended) and ledger.device == "cpu"
    mine = [call.ns for call in ledger.calls if call.slot == slot.index] if whole else []
    closed = sum(mine[-count:])
    if ledger.device == "cpu" and not ledger.ended and not is_open and ledger.rest is not None:
        # The wait ended with an error, and the rank was killed before it had written this call.
        closed = min(ledger.rest.causes[CAUSE["collective"]], slot.unsplit + slot.pending)
    return Wait(ledger, closed / 1e9, opened, ledger.last_sign_ns)


def lateness(missing: Ledger, wait: Wait) -> tuple[dict[str, float], int, float]:
    """What a missing rank did in the last seconds of a wait for it -> (own time by family, the slot in which it waited
    itself or -1, the seconds for which it had ended already).

    Everything that it did after its last step counts, relative to the length of the wait.
    """
    alive_ns = missing.last_sign_ns - _after_its_program_ns(missing)
    dead = min(wait.seconds, max(0.0, (wait.end_ns - alive_ns) / 1e9))
    lived = wait.seconds - dead
    phase, since_ns, slot = missing.position
    if not missing.ended and phase != "shutdown":  # its open phase says more
        opened = (missing.last_sign_ns - max(since_ns, missing.until_ns)) / 1e9
        if opened >= lived / 2:
            if phase == "collective":
                return {}, slot, dead
            own = {"host": (blocked := open_blocked(missing, lived))}
            own[_family_of(phase)] = own.get(_family_of(phase), 0.0) + lived - blocked
            return {family: seconds for family, seconds in own.items() if seconds}, -1, dead
    if missing.rest is None:
        return {}, -1, dead
    causes = tuple(0 if at == CAUSE["shutdown"] else ns for at, ns in enumerate(missing.rest.causes))
    spent = dict(zip(LATE_FAMILIES, own_time(causes), strict=True))
    whole = sum(spent.values())
    return {family: lived * ns / whole for family, ns in spent.items() if ns and whole}, -1, dead


def _after_its_program_ns(ledger: Ledger) -> int:
    """For how long a rank had left its main program when it ended: it waited for its threads, or for exit handlers."""
    phase, since_ns, _ = ledger.position
    if not ledger.ended and phase == "shutdown":
        return ledger.last_sign_ns - since_ns
    return ledger.rest.causes[CAUSE["shutdown"]] if ledger.rest else 0


def _family_of(phase: str) -> str:
    """The family of a rank's own time in an open phase. An open wait for data cannot be split."""
    cause = "unattributed" if phase == "data" else PHASE_CAUSE[phase]
    return next((family for family, causes in OWN_CAUSES.items() if cause in causes), "unattributed")
