"""Says who keeps a run waiting, and why: pure functions over ledgers and what is known about processes.

Ranks that wait for others form a graph. It ends at ranks that wait for nobody: these keep the run. If it has no end,
ranks wait for each other in different collectives or for a message that nobody sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..ledger.causes import PHASE, PHASE_ROW
from ..ledger.reader import Ledger
from . import absent, operations, standing
from .ends import end_of, ended_well, finish_sentences, listed, named, never_sentences
from .facts import NOTHING, Facts
from .hang import HANG_SECONDS, has_not_entered, long_waits, open_group, open_seconds, slot_in, waits
from .reasons import Reason, not_begun, reason_of, usual_seconds
from .unentered import never_entered, sentence

AFTER_SECONDS = 30.0
"""Shorter waits are never called a hang."""
SOON_SECONDS = 5.0
"""From this wait on, a diagnosis says what it is for."""
UNKNOWN_SECONDS = 60.0
"""A shorter wait for ranks of which nothing is known here may be, for example, a save of such a rank."""
TOGETHER_SECONDS = 5.0
"""Ranks whose last signs of life differ by less than this were killed together, for example by their launcher."""
RankFacts = Mapping[int, Facts]
Edges = dict[int, set[int]]


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank that keeps others waiting."""

    rank: int
    kind: str
    """The kind of a `Reason`, or: elsewhere, message, link, mismatch, no_ledger, ras, gone, odd."""
    text: str


@dataclass(frozen=True, slots=True)
class Collective:
    """The collective in which the longest wait is."""

    group: str
    size: int
    sequence: int
    """The number of calls that its ranks have entered in this group, this one included."""
    entered: dict[int, float]
    """Rank -> for how many seconds it has been in it."""
    missing: tuple[int, ...]
    unknown: tuple[int, ...] = ()
    """Ranks of the world without a ledger here."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``hung`` is False if nobody waits for long, or if the late rank works."""

    hung: bool
    sentence: str
    seconds: float = 0.0
    culprits: tuple[Culprit, ...] = ()
    collective: Collective | None = None


@dataclass(slots=True)
class _Case:
    ledgers: dict[int, Ledger]
    facts: RankFacts
    now_ns: int
    after: float
    over: bool = False
    """Whether somebody has ended the run, so that nobody has to judge whether a rank would have gone on."""
    waiters: list[Ledger] = field(default_factory=list)
    edges: Edges = field(default_factory=dict)

    def reason(self, rank: int) -> Reason:
        reason = reason_of(self.ledgers[rank], self.facts.get(rank, NOTHING), self.now_ns, self.after)
        if not self.over:
            return reason
        # A rank that had been stopped has been killed since.
        text = "was killed or stopped, or crashed" if reason.kind == "killed" else reason.text
        return reason._replace(patience=self.after, text=text)

    def since(self, rank: int) -> float:
        return open_seconds(self.ledgers[rank], self.now_ns)


def diagnose(
    newest: Iterable[Ledger], facts: RankFacts, now_ns: int, after: float = AFTER_SECONDS, *, over: bool = False
) -> Diagnosis:
    """``newest``: one ledger per rank of one run. ``facts`` may lack ranks. ``after``: shorter waits do not count.
    ``over``: the run has ended."""
    case = _Case({ledger.rank: ledger for ledger in newest}, facts, now_ns, after, over)
    case.waiters = long_waits(case.ledgers.values(), now_ns, after)
    if not case.waiters:
        found = _without_waits(case)
        return found if found.hung else _so_far(case) or found
    case.edges = {waiter.rank: _awaited(case, waiter) for waiter in case.waiters}
    awaited = set().union(*case.edges.values())
    if not awaited:
        return _all_entered(case)
    ends = sorted(rank for rank in awaited if not case.edges.get(rank))
    return _at_ends(case, ends) if ends else _circle(case)


def _so_far(case: _Case) -> Diagnosis | None:
    """What shorter waits are for. None: there are none, or the run has ended."""
    if case.over or case.after <= SOON_SECONDS:
        return None
    newest = list(case.ledgers.values())
    if not long_waits(newest, case.now_ns, SOON_SECONDS):
        return None
    found = diagnose(newest, case.facts, case.now_ns, SOON_SECONDS)
    told = found.sentence.removeprefix("Hang: ").removeprefix("No hang yet: ")
    return replace(found, hung=False, sentence=f"No hang yet: {told}. Waits count as a hang after {case.after:.0f} s")


def diagnose_afterwards(newest: Iterable[Ledger], after: float = AFTER_SECONDS) -> Diagnosis:
    """The same for a run without live ranks, as it was before its ranks were killed together.

    ``newest``: as in `diagnose`, and those that failed read with their steps.
    """
    ledgers = list(newest)
    last_ns = max((ledger.last_sign_ns for ledger in ledgers), default=0)
    before = [_before_its_end(ledger, ledgers, last_ns, after) for ledger in ledgers]
    found = diagnose(before, {}, last_ns, after, over=True)
    if not found.hung and (waits := never_entered(ledgers, longer_than=HANG_SECONDS)):
        longest = max(waits, key=lambda one: one.seconds)
        text = f"The run has ended. Before its end: {sentence(longest)}"
        return Diagnosis(longest.seconds > after, text, longest.seconds)
    if not found.hung and (apart := operations.sentences(ledgers, last_ns, HANG_SECONDS)):
        return Diagnosis(False, f"The run has ended. Before its end: {apart[0]}")
    if not found.hung:
        ends = (
            finish_sentences(ledgers, last_ns) or never_sentences(ledgers) or standing.sentences(ledgers, last_ns, ())
        )
        nothing = f"and it is not known whether it hung: {ends[0]}" if ends else "and nothing shows that it hung before"
        return Diagnosis(False, f"No rank of this run is alive, {nothing}")
    return replace(found, sentence=f"The run has ended. Before its end: {found.sentence}")


def _before_its_end(ledger: Ledger, ledgers: Sequence[Ledger], last_ns: int, after: float) -> Ledger:
    """A rank as it was before somebody ended the run; unchanged if it had ended before."""
    if end_of(ledger) == "killed" and last_ns - ledger.last_sign_ns < TOGETHER_SECONDS * 1e9:
        return replace(ledger, alive=True)
    # The last call of an accelerator is the last one that its device has passed, and its host is ahead.
    if end_of(ledger) != "failed" or ledger.device != "cpu" or not ledger.calls:
        return ledger
    # A long wait for a rank that never entered a collective ends with an error: after a time limit, or because a rank
    # of the group was killed. So the error is not what the others waited for.
    last = ledger.calls[-1]
    slot = next((slot for slot in ledger.slots if slot.index == last.slot and not slot.pairwise), None)
    if slot is None or last.ns <= after * 1e9:
        return ledger
    there = [slot_in(other, slot.key) for other in ledgers if other.attempt == ledger.attempt]
    if all(other is None or other.calls >= slot.calls for other in there):
        return ledger
    position = {"phase": PHASE["collective"], "phase_since_ns": last_ns - last.ns, "open_slot": slot.index}
    return replace(ledger, alive=True, words=ledger.words | {name: (value,) for name, value in position.items()})


def _awaited(case: _Case, waiter: Ledger) -> set[int]:
    """The ranks for which a rank waits."""
    where = open_group(waiter)
    if where is not None and where.pairwise:
        peer = waiter.open_peer_rank
        if peer < 0 and where.size == 2:
            others = [one.rank for one in case.ledgers.values() if one is not waiter and slot_in(one, where.key)]
            peer = others[0] if len(others) == 1 else -1
        return {peer} if peer in case.ledgers and peer != waiter.rank else set()
    found = set()
    for other in case.ledgers.values():
        if not has_not_entered(waiter, other):
            continue
        # A rank that waits elsewhere, and has not for long, still makes progress.
        if not waits(other) or (where is not None and open_seconds(other, case.now_ns) > case.after):
            found.add(other.rank)
    return found


# -- ranks that wait for nobody


def _at_ends(case: _Case, ends: Sequence[int]) -> Diagnosis:
    seconds = max(open_seconds(waiter, case.now_ns) for waiter in case.waiters if case.edges[waiter.rank])
    if all(waits(case.ledgers[rank]) for rank in ends):  # they are in an earlier call, which does not end
        members = {waiter.rank for waiter in case.waiters}
        if lines := _connections_of(case, members):
            return _conclude(True, seconds, _at_link(case, members, lines), _collective(case, case.waiters[0]))
    reasons = {rank: _end_reason(case, rank) for rank in ends}
    # A rank that ended or is stopped explains the wait better than one that only happens to be late, too.
    least = min(reason.patience for reason in reasons.values())
    kept = {rank: reason for rank, reason in reasons.items() if reason.patience == least}
    culprits = tuple(Culprit(rank, reason.kind, reason.text) for rank, reason in kept.items())
    collective = _collective(case, next(waiter for waiter in case.waiters if case.edges[waiter.rank]))
    hung = seconds > least and any(reason.lasted > least for reason in kept.values())
    return _conclude(hung, seconds, culprits, collective)


def _end_reason(case: _Case, rank: int) -> Reason:
    ledger = case.ledgers[rank]
    # What stopped it lasts, although it was in that call when its ledger was written last.
    if not waits(ledger) or _is_halted(case, rank):
        return case.reason(rank)
    where = open_group(ledger)
    place = f"call {where.calls} of {where.label}" if where is not None else "an earlier call"
    return Reason("elsewhere", f"is still in {place}, for {case.since(rank):.1f} s", case.after)


# -- ranks that wait for each other


def _circle(case: _Case) -> Diagnosis:
    """Most ranks are right: those in another collective, or in none, are named. If there is no majority, all are."""
    places = {waiter.rank: _place(waiter) for waiter in case.waiters}
    votes = Counter(place for place in places.values() if not place.pairwise) or Counter(places.values())
    common, most = votes.most_common(1)[0]
    if [*votes.values()].count(most) > 1:
        named_ranks = sorted(rank for rank in places if case.edges[rank])
    else:
        named_ranks = sorted(rank for rank, place in places.items() if place != common and case.edges[rank])
    waiter = next(ledger for ledger in case.waiters if places[ledger.rank] == common)
    culprits = tuple(_elsewhere(case, rank) for rank in named_ranks)
    return _conclude(True, open_seconds(waiter, case.now_ns), culprits, _collective(case, waiter))


class _Place(NamedTuple):
    """A call of a group."""

    key: int
    pairwise: bool
    calls: int


def _place(ledger: Ledger) -> _Place:
    where = open_group(ledger)
    return _Place(where.key, where.pairwise, where.calls) if where is not None else _Place(0, False, 0)


def _elsewhere(case: _Case, rank: int) -> Culprit:
    ledger = case.ledgers[rank]
    where = open_group(ledger)
    since = f"for {case.since(rank):.1f} s"
    awaited = named(sorted(case.edges[rank]))
    if where is not None and where.pairwise:
        text = f"waits {since} for a message from {awaited}, which does not send it: it waits in a collective"
        return Culprit(rank, "message", text)
    place = f"call {where.calls} of {where.label}" if where is not None else "a collective of an unknown group"
    return Culprit(rank, "elsewhere", f"is in another collective {since}: {place}, where it waits for {awaited}")


# -- everybody is in the collective


def _all_entered(case: _Case) -> Diagnosis:
    waiter = case.waiters[0]
    collective = _collective(case, waiter)
    seconds = min(collective.entered.values())  # before, it waited for the last one to enter
    members = set(collective.entered)
    halted = [
        Culprit(rank, reason.kind, reason.text if ended_well(ledger) else f"{reason.text}, inside the collective")
        for rank, ledger in case.ledgers.items()
        if (not ledger.alive or _is_halted(case, rank)) and (reason := case.reason(rank))
        if rank in members or not ledger.alive
    ]
    if halted:
        found = _conclude(True, seconds, tuple(halted), collective)
        left = any(one.kind == "ended" for one in halted)
        apart = operations.sentences([*case.ledgers.values()], case.now_ns, case.after)[:1] if left else []
        return replace(found, sentence=". ".join([found.sentence, *map(_capitalized, apart)]))
    if lines := _connections_of(case, members):
        return _conclude(True, seconds, _at_link(case, members, lines), collective)
    if collective.unknown:
        return _without_ledger(case, seconds, collective)
    if odd := _mismatch(case, members):
        return _conclude(True, seconds, odd, collective)
    known = [case.ledgers[rank] for rank in sorted(members)], case.now_ns, case.after
    apart = operations.sentences(*known) or operations.places(*known)
    # A ledger does not tell two groups of the same ranks apart.
    nothing = "no rank is known to be missing, and nothing shows why it does not end"
    why = apart[0] if apart else nothing
    sentence = f"{_all_in(collective, seconds)}. {_capitalized(why)}"
    return Diagnosis(seconds > max(case.after, usual_seconds(waiter)), sentence, seconds, (), collective)


def _without_ledger(case: _Case, seconds: float, collective: Collective) -> Diagnosis:
    """A rank gets its ledger with its first batch, step or collective."""
    found = {rank: facts.process for rank in collective.unknown if (facts := case.facts.get(rank, NOTHING)).process}
    reasons = {rank: not_begun(process, case.after) for rank, process in found.items() if process is not None}
    if not reasons:
        patience = case.after if case.over else max(UNKNOWN_SECONDS, case.after)
        here = absent.not_begun([*case.ledgers.values()])
        text = {True: "has not begun (no ledger yet)", False: "may be missing: no ledger of it is here"}
        reasons = {rank: Reason("no_ledger", text[rank in here], patience) for rank in collective.unknown}
    least = min(reason.patience for reason in reasons.values())
    culprits = tuple(Culprit(rank, one.kind, one.text) for rank, one in reasons.items() if one.patience == least)
    return _conclude(seconds > least, seconds, culprits, collective)


def _is_halted(case: _Case, rank: int) -> bool:
    process = case.facts.get(rank, NOTHING).process
    return process is not None and process.stopped


def _mismatch(case: _Case, members: set[int]) -> tuple[Culprit, ...]:
    """The rank that has called other operations in the group than all others, although as often."""
    slots = {rank: slot for rank in members if (slot := open_group(case.ledgers[rank])) is not None}
    votes = Counter(tuple(sorted(slot.bytes.items())) for slot in slots.values())
    if len(votes) != 2 or min(votes.values()) != 1 or len(slots) < 3:
        return ()
    # The odd rank comes last.
    *_, common, odd = sorted(slots, key=lambda rank: -votes[tuple(sorted(slots[rank].bytes.items()))])
    more, less = operations.differences(slots[odd], slots[common])
    if not more:
        return ()
    text = f"has called {listed(more)} where the other ranks of the group called {listed(less)}"
    return (Culprit(odd, "mismatch", text),)


def _at_link(case: _Case, members: set[int], lines: str) -> tuple[Culprit, ...]:
    """The ranks at the address that most connections without progress share."""
    ends: Counter[str] = Counter()
    for rank in members:
        for connection in case.facts.get(rank, NOTHING).connections:
            ends.update({connection.local, connection.remote})
    most = max(ends.values())
    worst = {address for address, count in ends.items() if count == most}
    at = [rank for rank in sorted(members) if worst & set(case.facts.get(rank, NOTHING).addresses)]
    return tuple(
        Culprit(rank, "link", f"cannot be reached over the network: {lines}") for rank in at or sorted(members)
    )


def _connections_of(case: _Case, ranks: Iterable[int]) -> str:
    pairs: Counter[tuple[str, str]] = Counter()
    for rank in ranks:
        for one in case.facts.get(rank, NOTHING).connections:
            pairs[one.local, one.remote] += one.unacknowledged
    texts = [
        f"{remote} does not acknowledge {size} bytes from {local}" for (local, remote), size in sorted(pairs.items())
    ]
    return listed(texts) if texts else ""


# -- nobody waits in a collective


def _without_waits(case: _Case) -> Diagnosis:
    """A run without collectives, or one that hangs before it gets to one."""
    live = [ledger for ledger in case.ledgers.values() if ledger.alive]
    longest = max((case.since(ledger.rank) for ledger in live), default=0.0)
    if not live:
        return Diagnosis(False, "No rank of this run is alive")
    kept: dict[int, Reason] = {}
    for ledger in live:
        reason, facts = case.reason(ledger.rank), case.facts.get(ledger.rank, NOTHING)
        if case.since(ledger.rank) <= reason.patience:
            continue
        # Afterwards nothing is known of processes. In its own code, a rank may have finished.
        stood = case.over and not PHASE_ROW[ledger.position.phase].own_code and reason.lasted > usual_seconds(ledger)
        if (
            reason.kind in ("stopped", "worker")
            or (facts.process is not None and facts.process.works is False)
            or stood
        ):
            kept[ledger.rank] = reason
    hard = {rank: reason for rank, reason in kept.items() if reason.kind in ("stopped", "worker")}
    if not hard and len(kept) < len(live):
        return Diagnosis(
            False, f"No hang: no rank waits for long, and the longest open phase has lasted {longest:.1f} s", longest
        )
    chosen = hard or _odd(case, kept)
    return _conclude(True, longest, tuple(Culprit(rank, one.kind, one.text) for rank, one in chosen.items()), None)


def _odd(case: _Case, kept: dict[int, Reason]) -> dict[int, Reason]:
    """The ranks that do something else than most."""
    does = {rank: reason.text.partition(" (")[0] + reason.text.rpartition(")")[2] for rank, reason in kept.items()}
    votes = Counter(does.values()).most_common(2)
    if len(votes) < 2 or votes[0][1] == votes[1][1]:
        return kept
    return {rank: reason for rank, reason in kept.items() if does[rank] != votes[0][0]}


# -- sentences


def _collective(case: _Case, waiter: Ledger) -> Collective:
    """What is known of the collective in which ``waiter`` waits."""
    where = open_group(waiter)
    place = _place(waiter)
    entered = {one.rank: case.since(one.rank) for one in case.ledgers.values() if waits(one) and _place(one) == place}
    missing = sorted(rank for rank in case.edges.get(waiter.rank, ()))
    whole = where is None or where.size == waiter.world_size
    unknown = sorted(set(range(waiter.world_size)) - case.ledgers.keys()) if whole else []
    label, size, calls = (where.label, where.size, where.calls) if where else ("unknown", 0, waiter.waits_reached)
    return Collective(label, size, calls, dict(sorted(entered.items())), tuple(missing), tuple(unknown))


def call_text(group: str, size: int, sequence: int) -> str:
    """``size``: 0 if the group is not known, as while ranks meet to make their first one."""
    return f"call {sequence} of group {group}" if size else "a collective of an unknown group"


def _all_in(collective: Collective, seconds: float) -> str:
    return (
        f"{_ranks(list(collective.entered))} {_have(collective.entered)} been in "
        f"{call_text(collective.group, collective.size, collective.sequence)} for {seconds:.1f} s"
    )


def _conclude(hung: bool, seconds: float, culprits: tuple[Culprit, ...], collective: Collective | None) -> Diagnosis:
    by_text: dict[str, list[int]] = {}
    for culprit in culprits:
        by_text.setdefault(culprit.text, []).append(culprit.rank)
    told = "; ".join(
        f"{named(ranks)} {text if len(ranks) == 1 else _of_several(text)}" for text, ranks in by_text.items()
    )
    sentence = f"Hang: {told}" if hung else f"No hang yet: {told}"
    if collective is not None and collective.entered:
        sentence += f". {_all_in(collective, seconds)}"
    return Diagnosis(hung, sentence, seconds, culprits, collective)


def _of_several(text: str) -> str:
    """What is said of one rank, as said of several."""
    verb, _, rest = text.partition(" ")
    plural = {"is": "are", "has": "have", "was": "were", "waits": "wait", "ends": "end"}
    return f"{plural.get(verb, verb)} {rest}".replace(": its training thread ", ": the training thread of each ")


def _ranks(ranks: list[int]) -> str:
    return _capitalized(named(ranks))


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def _have(ranks: Iterable[int]) -> str:
    return "has" if len(list(ranks)) == 1 else "have"
