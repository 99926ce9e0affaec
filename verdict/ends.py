"""How the ranks of a run ended: whether they failed or were killed, and which of them was first.

The end of a rank that ends itself is known exactly. A rank that an exception ends also looks which others are still
alive. A killed rank leaves only its last sign of life: a phase change or a heartbeat, of which there is about one a
second, and fewer on a busy machine. It died later, perhaps much later: a process that is stopped, or in which a thread
holds Python's lock, has no heartbeat. So a killed rank is never called the first to end.

A signal also ends processes whose work is done: the workers of Ray and of process pools, and jobs of some schedulers. A
ledger tells this where the training function has returned. Otherwise it only shows that a rank stood still after its
last step for longer than any of its steps took.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import median

from ..ledger.layout import CLEAN, FAILED, INTERRUPTED
from ..ledger.reader import Ledger
from . import failures, out_of_memory
from .absent import without_ledger
from .hang import HANG_SECONDS, open_seconds, silent_seconds
from .stuck import place_of, waits_for

FIRST_SECONDS = 0.05
"""A rank is named as the first to end if the next one ended at least this much later."""
LAUNCHER_SECONDS = 40.0
"""A launcher ends the other ranks soon after one has failed: with SIGTERM, and torchrun after 30 s with SIGKILL."""
STILL_SECONDS, STILL_STEPS, STILL_LONGEST = 1.0, 10.0, 2.0
"""A rank that was killed may have finished if it was in the loop's own code for this long after its last step, for this
many median steps, and for this many of its longest steps."""
SILENT_SECONDS = 5.0
"""The report says that a killed rank was silent if its last sign of life came this long before that of all others."""


def state_of(newest: Collection[Ledger]) -> str:
    """One word for a run: `live`, `2 live`, `ended`, `failed` (a rank ended with an error) or `killed`.

    ``newest``: the newest ledger of each rank.
    """
    alive = sum(ledger.alive for ledger in newest)
    if alive:
        return "live" if alive == len(newest) else f"{alive} live"
    if may_have_finished(newest):
        return "ended"
    return max((end_of(ledger) for ledger in newest), key=("ended", "killed", "failed").index, default="ended")


def end_of(ledger: Ledger) -> str:
    """How a rank that is not alive ended: `ended`, `failed` or `killed`. A rank whose training had returned when it was
    killed has ended, and so has one that Ctrl-C has interrupted."""
    if ledger.ended == FAILED or ledger.exited > 1:
        return "failed"
    return "ended" if ledger.ended in (CLEAN, INTERRUPTED) or ledger.has_returned else "killed"


def ended_well(ledger: Ledger) -> bool:
    """Whether its program has come to its end."""
    return end_of(ledger) == "ended" and ledger.ended != INTERRUPTED


def may_have_finished(ledgers: Collection[Ledger]) -> list[Ledger]:
    """The ranks that were killed while they did nothing after their last step, if no rank did anything else.

    ``ledgers``: one of each rank, of one attempt, read with its steps. Ranks of a training that hangs look like this
    too, if they all stand still in the loop's own code.
    """
    over = [ledger for ledger in ledgers if not ledger.alive]
    killed = [ledger for ledger in over if end_of(ledger) == "killed" and not out_of_memory.evidence(ledger)]
    still = [ledger for ledger in killed if _still_seconds(ledger)]
    others = [ledger for ledger in over if ledger not in still]
    same = len(over) == len(ledgers) and len({ledger.steps for ledger in over}) == 1
    return still if same and all(end_of(ledger) == "ended" for ledger in others) else []


def _still_seconds(killed: Ledger, until_ns: int = 0) -> float:
    """For how long a rank has stood still after its last step; 0 if it was in some phase, or not for long.

    ``until_ns``: now, if it is alive.
    """
    if not killed.ring or not killed.stands_still:
        return 0.0
    # The first step of a process also makes connections and compiles.
    steps = [step.wall_ns / 1e9 for step in killed.ring[1:] or killed.ring]
    still = (max(killed.last_sign_ns, until_ns) - killed.ring[-1].end_ns) / 1e9
    least = max(STILL_SECONDS, STILL_STEPS * median(steps), STILL_LONGEST * max(steps))
    return still if still >= least else 0.0


def finish_sentences(newest: Collection[Ledger], now_ns: int) -> list[str]:
    """Which ranks a signal has ended after their last step, or Ctrl-C, or that all live ranks may have taken it.

    ``newest``: see `state_of`. Nobody but the program knows that a step was the last one while its process lives.
    """
    said: list[str] = []
    living = [ledger for ledger in newest if ledger.alive]
    still_for = [_still_seconds(ledger, now_ns) for ledger in living]
    if silent := [ledger for ledger in living if silent_seconds(ledger, now_ns)]:
        seconds = min(silent_seconds(ledger, now_ns) for ledger in silent)
        have = "has" if len(silent) == 1 else "have"
        said.append(f"{_named(silent)} {have} given no sign of life for {seconds:.1f} s")
    elif living and all(still_for) and all(end_of(one) == "ended" for one in newest if not one.alive):
        if all(ledger.position.phase == "shutdown" for ledger in living):
            return [_not_exited(living, now_ns)]
        its, are = ("its", "is") if len(living) == 1 else ("their", "are")
        at = _stand_at(living)
        there = ", or hang there" if at else ""
        said.append(
            f"{_named(living)} took {its} last step {min(still_for):.1f} s ago, much longer than any step took, and"
            f" {are} in no phase that the hooks see{at}: the training may have finished{there}"
        )
    if living:
        return said
    if interrupted := [one for one in newest if one.ended == INTERRUPTED]:
        said.append(f"{_named(interrupted)} {_were(interrupted)} interrupted with Ctrl-C{_stand_at(interrupted)}")
    if still := may_have_finished(newest):
        seconds = min(map(_still_seconds, still))
        its, they = ("its", "it") if len(still) == 1 else ("their", "they")
        at = _stand_at(still)
        said.append(
            f"{_named(still)} {_were(still)} ended by a signal, {seconds:.1f} s after {its} last step{at}:"
            f" {they} may have finished{', or hung there' if at else ''}"
        )
    return said


def _not_exited(living: Sequence[Ledger], now_ns: int) -> str:
    seconds = min(open_seconds(ledger, now_ns) for ledger in living)
    if len(living) == 1:
        return f"{_named(living)} {not_exited(living[0], now_ns)}"
    said = f"have left their main programs, but have not exited (for {seconds:.1f} s): they wait for their"
    return f"{_named(living)} {said} threads, or for exit handlers"


def not_exited(ledger: Ledger, now_ns: int) -> str:
    """How a live rank has left its main program, and what it waits for; it continues a sentence about the rank."""
    left = "has left its main program"
    if ledger.strings["failure"]:
        left = f"has ended with an error{failures.sentence(ledger)}"
    others = waits_for(ledger)
    return (
        f"{left}, but has not exited (for {open_seconds(ledger, now_ns):.1f} s): it waits for its threads, or for exit"
        f" handlers{f' ({others})' if others else ''}"
    )


def _stand_at(ledgers: Collection[Ledger]) -> str:
    """Where all these ranks have been since their last step, if that is one place; otherwise empty."""
    places = set(map(place_after_steps, ledgers))
    return f", at {places.pop()}" if len(places) == 1 and "" not in places else ""


def place_after_steps(ledger: Ledger) -> str:
    """What takes long after the last step, as in stuck.py; empty if that is not known."""
    after = ledger.ring and ledger.stuck_since_ns >= ledger.ring[-1].end_ns
    return place_of(ledger) if after else ""


def failed_sentences(newest: Collection[Ledger], now_ns: int) -> list[str]:
    """Which live ranks have ended with an error. They wait for their threads. ``newest``: see `state_of`."""
    failed = [
        one
        for one in newest
        if one.alive
        and one.strings["failure"]
        and one.position.phase == "shutdown"
        and open_seconds(one, now_ns) > HANG_SECONDS
    ]
    if len(failed) == 1:
        return [f"{_named(failed)} {not_exited(failed[0], now_ns)}"]
    sentences = []
    for said, ranks in _by(failures.sentence, failed).items():
        has = "has" if len(ranks) == 1 else "have"
        sentences.append(f"{_named(ranks)} {has} ended with an error{said}, but {has} not exited")
    return sentences


def end_sentences(newest: Collection[Ledger]) -> list[str]:
    """Which ranks ended with an error, which were killed, which rank was first, and which data workers have died.

    ``newest``: see `state_of`.
    """
    over = [ledger for ledger in newest if not ledger.alive]
    finished = may_have_finished(newest)
    over = [ledger for ledger in over if ledger not in finished]
    failed, killed = ([one for one in over if end_of(one) == end] for end in ("failed", "killed"))
    comparable = _comparable(newest)
    first = _first(newest) if comparable else None
    sentences = []
    for said, ranks in _by(failures.sentence, failed).items():
        lead = _lead(first, newest) if first in ranks else ""
        sentences.append(f"{_named(ranks)} ended with an error{said}{lead}")
    # The main program had ended, but a thread had not.
    raised = [one for one in killed if one.strings["failure"] and not out_of_memory.evidence(one)]
    for said, ranks in _by(failures.sentence, raised).items():
        before = "it" if len(ranks) == 1 else "they"
        sentences.append(f"{_named(ranks)} failed{said}, and {_were(ranks)} killed before {before} exited")
    killed = [one for one in killed if one not in raised]
    for_memory = [one for one in killed if out_of_memory.evidence(one)]
    for said, ranks in _by(out_of_memory.how, for_memory).items():
        sentences.append(f"{_named(ranks)} {_were(ranks)} killed{said}")
        if grew := out_of_memory.growth(ranks[0]):
            sentences.append(f"rank {ranks[0].rank}: {grew}")
    confirmed = [one for one in for_memory if out_of_memory.evidence(one) == "log"] if comparable else []
    rest = [one for one in killed if one not in for_memory]
    cause = first or min(confirmed, key=lambda one: one.last_sign_ns, default=None)
    after = [one for one in rest if cause is not None and _follows(one, cause, newest)]
    if after:
        sentences.append(f"{_named(after)} {_were(after)} then killed (by the launcher, it seems)")
    if rest := [one for one in rest if one not in after]:
        said = _before([*failed, *raised]) or _silent(newest) if comparable else ""
        saving = " in a save" if all(one.position.phase == "checkpoint" for one in rest) else ""
        sentences.append(f"{_named(rest)} {_were(rest)} killed, or crashed{saving}{said}")
    sentences += never_sentences(newest)
    for ledger in newest:
        sentences += filter(None, (dead_worker(ledger), out_of_memory.others_sentence(ledger)))
        if out_of_memory.worker_sentence(ledger) and (grew := out_of_memory.growth(ledger)):
            sentences.append(f"rank {ledger.rank}, with its data workers: {grew}")
    return sentences


def earlier_sentences(ledgers: Iterable[Ledger], newest: Collection[Ledger]) -> list[str]:
    """Which ranks of the attempt before were killed with evidence that memory ran out. ``ledgers``: all of the run.

    `end_sentences` names a rank without a later attempt.
    """
    last = max((ledger.attempt for ledger in newest), default=0)
    earlier = [one for one in ledgers if one.attempt < last and not one.alive]
    before = max((one.attempt for one in earlier), default=0)
    of_it = [
        one
        for one in earlier
        if one.attempt == before and end_of(one) == "killed" and out_of_memory.evidence(one) and one not in newest
    ]
    return [
        f"attempt {before}: {_named(ranks)} {_were(ranks)} killed{how}"
        for how, ranks in _by(out_of_memory.how, of_it).items()
    ]


def never_sentences(newest: Collection[Ledger]) -> list[str]:
    """Which ranks others may have waited for until they failed before their first step, because these ranks had not
    begun. After a training, the ledgers of some ranks may have been removed."""
    if any(one.alive or one.window_ns for one in newest) or not any(end_of(one) == "failed" for one in newest):
        return []
    never = without_ledger(newest, newest)
    has = "has" if len(never) == 1 else "have"
    return [f"{named(never)} {has} left no ledger here, and may not have begun when the others failed"] if never else []


def _by(how: Callable[[Ledger], str], ledgers: Collection[Ledger]) -> dict[str, list[Ledger]]:
    found: dict[str, list[Ledger]] = {}
    for ledger in ledgers:
        found.setdefault(how(ledger), []).append(ledger)
    return found


def dead_worker(ledger: Ledger) -> str:
    """Says which data worker of a rank has died, and how; empty if none was found dead."""
    who = f"data worker {ledger.dead_worker_pid} of rank {ledger.rank}"
    if not ledger.dead_worker_pid:
        return ""
    if number := ledger.dead_worker_signal:
        if said := out_of_memory.worker_sentence(ledger):
            return f"{who} was killed{said}"
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        if number == signal.SIGBUS and ledger.shm_bytes:
            hint = f" (its /dev/shm has {ledger.shm_bytes >> 20} MiB: is it full? {failures.LARGER_SHM})"
        return f"{who} was killed by {_signal_name(number)}{hint}"
    return f"{who} ended with exit status {ledger.dead_worker_status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _comparable(newest: Collection[Ledger]) -> bool:
    """Whether all ranks of the run have ledgers here, have ended and have the same clock. Each node has its own."""
    clocks = {(ledger.node, ledger.strings["boot"], ledger.attempt) for ledger in newest}
    whole = len(newest) >= max((ledger.world_size for ledger in newest), default=0)
    return whole and len(newest) > 1 and len(clocks) == 1 and not any(ledger.alive for ledger in newest)


def _first(newest: Collection[Ledger]) -> Ledger | None:
    """The rank that ended before all others with an error, if that is known."""
    saw_all = [one for one in newest if _saw_all(one, newest)]
    if len(saw_all) == 1:
        return saw_all[0]
    first, second = sorted(newest, key=lambda ledger: ledger.last_sign_ns)[:2]
    # A killed rank lived at its last sign of life, so that one may follow at once.
    least_ns = 0 if end_of(second) == "killed" else FIRST_SECONDS * 1e9
    known = end_of(first) == "failed" and second.last_sign_ns - first.last_sign_ns >= least_ns
    return first if known else None


def _saw_all(failed: Ledger, newest: Collection[Ledger]) -> bool:
    """Whether all other ranks were alive when an exception ended this one."""
    return end_of(failed) == "failed" and failed.alive_at_end == len(newest)


def _lead(first: Ledger | None, newest: Collection[Ledger]) -> str:
    if first is None:
        return ""
    second = min((one for one in newest if one is not first), key=lambda ledger: ledger.last_sign_ns)
    seconds = (second.last_sign_ns - first.last_sign_ns) / 1e9
    at_least = "at least " if end_of(second) == "killed" else ""
    lead = f", {at_least}{seconds:.1f} s before the next one" if seconds >= FIRST_SECONDS else ""
    # After it had failed, it may have waited for threads.
    how = "fail" if seconds < -SILENT_SECONDS else "end"
    return f". Rank {first.rank} was the first to {how}{lead}"


def _follows(killed: Ledger, first: Ledger, newest: Collection[Ledger]) -> bool:
    """Whether a killed rank was alive when the first one ended, and not for much longer."""
    longer = killed.last_sign_ns - first.last_sign_ns
    # The last sign of a killed rank may be up to SILENT_SECONDS older than its end.
    least_ns = -SILENT_SECONDS * 1e9 if end_of(first) == "killed" or _saw_all(first, newest) else 0
    return least_ns <= longer <= LAUNCHER_SECONDS * 1e9


def _before(failed: Sequence[Ledger]) -> str:
    """Says that killed ranks were no longer alive when exceptions had ended the main programs of the others, if these
    saw no other rank then."""
    seen = [one.alive_at_end for one in failed]
    if not seen or min(seen) <= 0 or max(seen) > len(failed):
        return ""
    program = "main program" if len(failed) == 1 else "main programs"
    who = _named(sorted(failed, key=_rank))
    return f". That was before the {program} of {who} ended: that error may only be what follows from it"


def _silent(newest: Collection[Ledger]) -> str:
    """Says that one killed rank gave no sign of life for some time while the others did."""
    first, second = sorted(newest, key=lambda ledger: ledger.last_sign_ns)[:2]
    seconds = (second.last_sign_ns - first.last_sign_ns) / 1e9
    if end_of(first) != "killed" or not first.heartbeat_ns or seconds < SILENT_SECONDS:
        return ""
    doing = {"checkpoint": ", in a save", "restore": ", in a restore"}.get(first.position.phase, "")
    return (
        f". Rank {first.rank} gave its last sign of life {seconds:.1f} s before the next one{doing}: it died then, or"
        " stood still"
    )


def _named(ledgers: Sequence[Ledger]) -> str:
    return named([ledger.rank for ledger in ledgers])


def _rank(ledger: Ledger) -> int:
    return ledger.rank


def _were(ledgers: Sequence[Ledger]) -> str:
    return "was" if len(ledgers) == 1 else "were"


def named(numbers: list[int]) -> str:
    """`rank 3`, `ranks 3 and 5`, `ranks 1, 2, 3 and 4 more`."""
    return f"rank{'s' if len(numbers) > 1 else ''} {listed([*map(str, numbers)])}"


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b, c and 4 more`."""
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])


def every_rank(number: int) -> str:
    return "both ranks" if number == 2 else f"all {number} ranks"


def counted(number: int, what: str) -> str:
    """`1 failure`, `2 failures`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
