"""The verdict: what a run lost most time to, and the evidence. Pure functions; all thresholds are in this file.

The verdict looks through stragglers: waits for a late rank count under what made that rank late. This is a conclusion.
The causes stay as they were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from ..ledger.causes import CAUSE_FAMILY, FAMILIES, WAIT_CAUSES
from . import own_files, shortage, where, workers
from .accounts import RankAccount, RunAccount, Seconds
from .chain import conclusion_of
from .ends import dead_worker, named
from .lookthrough import Conclusion
from .places import NOBODY, Named, most_of
from .unentered import Unentered, sentence

VERDICT_SHARE = 0.10
"""A family other than compute can be the verdict only if it has at least this share of the window."""
LATE_SHARE = 0.01
"""A rank is named as late if others waited for it for at least this share of the window."""
ALSO_SHARE = 0.3
"""The evidence names each family that has at least this share of the waits for a late rank."""
LEAD_SHARE = 0.2
"""The headline begins with late ranks if waits for them are at least this part of what the verdict's family took. Below
that, nearly all of it is the ranks' own time."""
EVIDENCE_SHARE = 0.01
"""The evidence mentions a cause that has at least this share of the window."""
EVEN = 0.9
"""The evidence mentions the numbers of steps if one rank took at most this share of the steps of another."""
LEAST_AT_A_LINE, AT_A_LINE = 20, 0.6
"""The evidence names the line at which the loop is while its GPU has work, if there were this many looks at it, and
this share of all."""
DIFFERS = 0.1
"""The evidence mentions the GPU's counters if they differ from a rank's looks by this share of its window."""
UNSPLIT_SHARE = 0.05
"""The evidence mentions unsplit waits that have at least this share of the window."""

OPEN_PHASE_FAMILY: dict[str, str] = {
    "checkpoint": "storage",
    "restore": "storage",
    "host": "host",
    "gc": "host",
    "compile": "host",
    "data_start": "host",
    "data": "unattributed",
}
"""Phase of a missing rank -> the family that keeps it from entering the collective. Other phases: `straggler`."""

WORDS: dict[str, str] = {
    "compute": "computing",
    "recompute": "repeating steps that an earlier attempt had finished",
    "data_read": "waiting for a worker that was blocked",
    "data_cpu": "waiting for a worker that was on a CPU",
    "data_queue": "waiting for a worker that got no CPU",
    "data_handoff": "waiting for a batch that was ready but had not arrived",
    "network": "in transfers that every rank had entered",
    "straggler": "waiting in collectives for a late rank",
    "collective": "waiting in collectives that could not be split",
    "collective_queue": "waiting in collectives while communication threads got no CPU",
    "pipeline": "waiting for another pipeline stage",
    "checkpoint_write": "blocked in a save",
    "checkpoint_cpu": "serialising or copying in a save",
    "checkpoint_read": "restoring",
    "host": "in the loop's own Python",
    "host_gc": "in garbage collection",
    "host_compile": "compiling",
    "host_blocked": "blocked in the loop's own code",
    "startup": "starting up",
    "unattributed": "that nothing explains",
    "data_start": "starting and ending data workers",
}
"""Cause -> what a rank did in that time."""

SAID_OF_CAUSES: dict[str, str] = {
    "compute": "compute takes longer than on the others",
    "recompute": "steps are repeated that an earlier attempt had finished",
    "data_read": workers.BLOCKED,
    "data_cpu": "data workers are busy on the CPU",
    "data_queue": "data workers get no CPU",
    "data_handoff": "batches are slow to reach the loop",
    "network": shortage.TRANSFERS,
    "straggler": "ranks wait for a late rank",
    "collective": "waits in collectives could not be split",
    "collective_queue": "the ranks' communication threads get no CPU",
    "pipeline": "pipeline stages wait for one another",
    "checkpoint_write": "saves block the loop",
    "checkpoint_cpu": "saves serialise or copy on the CPU",
    "checkpoint_read": "restores block the loop",
    "host": "the loop runs its own Python between phases",
    "host_gc": "garbage collection pauses the loop",
    "host_compile": "compilation stops the loop",
    "host_blocked": shortage.BLOCKED,
    "startup": "a rank is starting up",
    "unattributed": "nothing that was measured explains it",
    "data_start": "the loop waits for data workers to start",
}
"""Cause -> the reason in a headline. It follows the name of a rank, or stands alone for the whole run."""


WORK: dict[str, dict[str, str]] = {
    "storage": {"checkpoint_write": "its checkpoints", "checkpoint_read": "restoring"},
    "cpu": {"checkpoint_cpu": "its checkpoints"},
    "straggler": {
        "evaluation": "its evaluation",
        "rollout": "its rollouts",
        "not_learned": "its generation or evaluation",
    },
}
"""Family that made a rank late -> {part of its own time: what to call it}.

The name is used instead of the family's if the part is at least MOST of the rank's excess over the others in that
family, and of the average wait of another rank for it.
"""
MOST = 0.75
UNSEEN = ", but nobody looked whether the GPU had work in compute"
LATE_AFTERWARDS = "the others waited for it after their last steps"
LAUNCHES = "the GPU runs out of work while the loop computes: the host launches too late"
SAID_OF_WORK: dict[str, str] = {
    "its evaluation": "it evaluates while others wait",
    "its rollouts": "its rollouts take longer than on the others",
    "its generation or evaluation": (
        "its generation or evaluation (compute without gradients) takes longer than on the others"
    ),
}
"""Name in WORK of a part of compute -> the reason in a headline."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Other ranks waited ``seconds`` for ``rank``, because of ``family`` (mapped by LATE_BY of lookthrough.py)."""

    rank: int
    family: str
    seconds: float
    open: bool = False  # the rank is still missing; the rule `_hangs` says who waits for it


def late_charges(conclusion: Conclusion) -> list[Charge]:
    """Waits for late ranks and other stages, by the rank at the end of the chain and by what made it late."""
    return [
        Charge(culprit.rank, culprit.family, spent)
        for culprit, spent in conclusion.waited.items()
        if culprit.rank is not None and culprit.rank >= 0 and culprit.family not in ("network", "communication")
    ]


def open_charges(account: RunAccount) -> list[Charge]:
    """Waits that are open now because of a missing rank. They are not transfers: that rank has not entered yet.

    All of them are charged to the rank that has kept others waiting longest.
    """
    if not account.missing:
        return []
    first = max(account.missing, key=lambda missing: missing.seconds)
    waiting = {ledger.rank for missing in account.missing for ledger in missing.waiting}
    seconds = sum(rank.open_wait for rank in account.ranks if rank.rank in waiting)
    phase = first.ledger.position.phase if first.ledger.alive else ""
    return [Charge(first.ledger.rank, OPEN_PHASE_FAMILY.get(phase, "straggler"), seconds, open=True)]


def look_through(account: RunAccount) -> tuple[Seconds, list[Charge], Conclusion]:
    """Looks through the waits for late ranks: (seconds per family, which ranks were late, the solved chain)."""
    conclusion = conclusion_of(account)
    totals = dict.fromkeys(FAMILIES, 0.0) | conclusion.seconds
    opened = open_charges(account)
    totals["communication"] -= sum(charge.seconds for charge in opened)
    for charge in opened:
        totals[charge.family] += charge.seconds
    return totals, late_charges(conclusion) + opened, conclusion


def verdict(account: RunAccount) -> dict[str, object] | None:
    """Returns the verdict on a run; None if no rank has begun its first step."""
    window = account.rank_seconds
    if window <= 0:
        return None
    totals, charges, conclusion = look_through(account)
    family = max((name for name in FAMILIES if name != "compute"), key=lambda name: totals[name])
    if totals[family] < VERDICT_SHARE * window:
        family = "compute"
    case = Case(account, family, totals, charges, conclusion)
    return {
        "family": family,
        "share": totals[family] / window,
        "corroborated": None,  # node counters are not read here
        "summary": summary(case),
        "evidence": [sentence for rule in RULES for sentence in rule(case)],
        "late_ranks": [late._asdict() for late in late_ranks(case)],
        "late_groups": late_groups(case),
        "where": where.spots(case.account),
        "take_turns": case.take_turns,
    }


@dataclass(frozen=True, slots=True)
class Case:
    """What the rules of evidence get as input."""

    account: RunAccount
    family: str
    totals: Seconds  # after look-through
    charges: list[Charge]
    conclusion: Conclusion

    @property
    def window(self) -> float:
        return self.account.rank_seconds

    @property
    def led(self) -> bool:
        """Whether a good part of the verdict's seconds are waits for late ranks, or for a missing one."""
        waits = sum(charge.seconds for charge in self.charges if charge.family == self.family)
        return waits >= LEAD_SHARE * self.totals[self.family]

    @property
    def take_turns(self) -> bool:
        return self.led and self.conclusion.take_turns(self.family)

    def late(self, family: str) -> float:
        """The seconds that ranks waited for ranks that ``family`` had made late."""
        return sum(charge.seconds for charge in self.charges if charge.family == family and not charge.open)


class Late(NamedTuple):
    """A rank that others waited for. ``share`` is of all ranks' windows; ``node`` is empty if it has no ledger here."""

    rank: int
    node: str
    share: float
    family: str


def late_ranks(case: Case) -> list[Late]:
    """The ranks that others waited for, worst first."""
    by_rank: dict[int, Seconds] = {}
    for charge in case.charges:
        families = by_rank.setdefault(charge.rank, {})
        families[charge.family] = families.get(charge.family, 0.0) + charge.seconds
    entries: list[tuple[float, int, str]] = [
        (sum(families.values()) / case.window, rank, max(families, key=lambda name: families[name]))
        for rank, families in by_rank.items()
    ]
    entries.sort(key=lambda entry: (-entry[0], entry[1]))
    nodes = case.conclusion.nodes
    return [Late(rank, nodes.get(rank, ""), share, family) for share, rank, family in entries if share >= LATE_SHARE]


def late_groups(case: Case) -> list[dict[str, object]]:
    """The groups that lost most to transfers or to waits that could not be split, worst first."""
    found: dict[tuple[str, tuple[int, ...], str], float] = {}
    for culprit, spent in case.conclusion.waited.items():
        if culprit.group is not None and culprit.group.ranks and culprit.family in ("network", "communication"):
            key = culprit.group.name, culprit.group.ranks, culprit.family
            found[key] = found.get(key, 0.0) + spent
    return [
        {"group": name, "ranks": list(ranks), "family": family, "share": spent / case.window}
        for (name, ranks, family), spent in sorted(found.items(), key=lambda entry: -entry[1])
        if spent >= LATE_SHARE * case.window
    ]


def summary(case: Case) -> str:
    """The reason in the headline, for example `rank 1 is late: data workers are blocked on reads`."""
    said = _headline(case)
    known = case.account.unentered or LATE_AFTERWARDS in said
    return said if known or case.family == "compute" or not _is_afterwards(case) else f"{said}, after the last step"


def _headline(case: Case) -> str:
    if case.family == "compute":
        unseen = any(rank.newest.device != "cpu" and rank.gaps is None for rank in case.account.ranks)
        asleep = where.unknown(case.account)
        return (
            f"no other family takes a tenth of the time{UNSEEN if unseen else ''}{f', but {asleep}' if asleep else ''}"
        )
    if case.take_turns:
        if case.family == "straggler":
            short = shortage.reason(case.account, case.late("straggler"))
            return f"ranks take turns at being late: {short or SAID_OF_CAUSES['compute']}"
        return f"ranks take turns at being late: {_reason(case)}"
    waited = _waited_for(case)
    late = most_of(waited, case.account) if case.led else NOBODY
    if late.ranks:
        worst = max(late.ranks, key=lambda rank: waited.get(rank, 0.0))
        [account] = [rank for rank in case.account.ranks if rank.rank == worst]
        return f"{_who(case, late)} {'is' if len(late.ranks) == 1 else 'are'} late: {_missing_reason(case, account)}"
    died = [said for rank in case.account.ranks if (said := dead_worker(rank.newest))]
    if died and case.family == "unattributed":
        return died[0]
    few = NOBODY if case.family == "straggler" else _concentrated(case)  # ranks that wait are not the reason
    return f"{_who(case, few)}: {_reason(case)}" if few.ranks else _reason(case)


def _waited_for(case: Case) -> dict[int, float]:
    """Rank -> how long others waited for it because of the verdict's family."""
    spent: dict[int, float] = {}
    for charge in case.charges:
        if charge.family == case.family:
            spent[charge.rank] = spent.get(charge.rank, 0.0) + charge.seconds
    return spent


def _who(case: Case, found: Named) -> str:
    """The text of the ranks, and their node if it does not say that already."""
    return found.text + (_where(case, [*found.ranks]) if found.text == named([*found.ranks]) else "")


def _missing_reason(case: Case, late: RankAccount) -> str:
    for missing in case.account.missing:
        if missing.ledger.rank == late.rank:
            return f"others have been waiting {missing.seconds:.1f} s for it to enter a collective"
    if (unentered := _unentered(case, late.rank)) is not None:
        waiting = named([wait.ledger.rank for wait in unentered.waits])
        return f"{waiting} waited {unentered.seconds:.1f} s in a collective that it never entered"
    if case.family == "straggler" and _is_unexplained(case, late):
        return LATE_AFTERWARDS
    excess = _excess(case, late, case.family)
    if case.family == "straggler":
        return SAID_OF_WORK.get(_work(case, late, case.family), SAID_OF_CAUSES["compute"])
    cause = max(excess, key=lambda cause: (excess[cause], late.seconds[cause]))
    if cause == "data_read":
        return workers.reason([late])
    said = SAID_OF_CAUSES[cause]
    return where.reason(case.account, [late], said) if cause in ("host", "host_blocked") else said


def _unentered(case: Case, rank: int) -> Unentered | None:
    """The collective that a rank never entered, if that is most of what others waited for it."""
    waited = sum(charge.seconds for charge in case.charges if charge.rank == rank)
    for found in case.account.unentered:
        if rank in [ledger.rank for ledger in found.missing]:
            spent = sum(wait.seconds for wait in found.waits) / len(found.missing)
            return found if spent >= MOST * waited else None
    return None


def _is_unexplained(case: Case, late: RankAccount) -> bool:
    """Whether it is not known why a rank was late for most of the time that others waited for it."""
    waited = sum(charge.seconds for charge in case.charges if (charge.rank, charge.family) == (late.rank, "straggler"))
    each = waited / max(1, len(case.account.ranks) - 1)
    return sum(group.late_unexplained for group in late.groups.values()) > MOST * each


def _excess(case: Case, late: RankAccount, family: str) -> Seconds:
    """A late rank's own time in a family, per cause, beyond that of the other rank that had least of it.

    For `straggler`, these are the excess in compute, and in parts of compute.
    """
    others = [_own(rank, family) for rank in case.account.ranks if rank is not late]
    return {
        cause: max(0.0, spent - min((other[cause] for other in others), default=0.0))
        for cause, spent in _own(late, family).items()
    }


def _own(rank: RankAccount, family: str) -> Seconds:
    if family == "straggler":
        return {
            "compute": rank.seconds["compute"] + rank.seconds["recompute"],
            "evaluation": rank.evaluation,
            "rollout": rank.rollout,
            "not_learned": rank.not_learned,
        }
    return {cause: rank.seconds[cause] for cause, of in CAUSE_FAMILY.items() if of == family}


def _work(case: Case, late: RankAccount, family: str) -> str:
    """What a rank was doing when it was late; empty if WORK has no name for it."""
    excess, own = _excess(case, late, family), _own(late, family)
    whole = excess["compute"] if family == "straggler" else sum(excess.values())
    waited = sum(charge.seconds for charge in case.charges if (charge.rank, charge.family) == (late.rank, family))
    each = waited / max(1, len(case.account.ranks) - 1)  # on average, of the other ranks
    for cause, name in WORK.get(family, {}).items():
        if excess[cause] > 0 and excess[cause] >= MOST * whole and own[cause] >= MOST * each:
            return name
    return ""


def _reason(case: Case) -> str:
    ranks = case.account.ranks
    cause = _top_cause(ranks, case.family)
    if cause == "host" and sum(rank.gaps or 0.0 for rank in ranks) > sum(rank.seconds["host"] for rank in ranks) / 2:
        return LAUNCHES
    if cause in ("host", "host_blocked"):
        otherwise = shortage.reason_of_blocked(case.account) if cause == "host_blocked" else SAID_OF_CAUSES[cause]
        return where.reason(case.account, ranks, otherwise)
    if cause == "data_read":
        return workers.reason(ranks)
    if cause == "unattributed":
        return workers.reason_of_unattributed(ranks) or SAID_OF_CAUSES[cause]
    return shortage.reason_of_transfers(case.account) if cause == "network" else SAID_OF_CAUSES[cause]


def _top_cause(ranks: list[RankAccount], family: str) -> str:
    causes = [cause for cause, of in CAUSE_FAMILY.items() if of == family]
    return max(causes, key=lambda cause: sum(rank.seconds[cause] for rank in ranks))


def _concentrated(case: Case) -> Named:
    """The few ranks or places that have most of the seconds of the verdict's family."""
    direct = {rank.rank: rank.family_seconds()[case.family] for rank in case.account.ranks}
    return most_of(direct, case.account)


def _by(family: str) -> str:
    return " for an unknown reason" if family == "unattributed" else f" by {family}"


def _where(case: Case, numbers: list[int]) -> str:
    """` on node-7` if the run has several nodes and all of these ranks are on that one; otherwise empty."""
    nodes = case.conclusion.nodes
    theirs = {nodes.get(number, "") for number in numbers}
    [node] = theirs if len(theirs) == 1 else [""]
    return f" on {node}" if node and len({name for name in nodes.values() if name}) > 1 else ""


# The rules of evidence. Each yields the sentences, with numbers, that apply to the case.


def _causes(case: Case) -> Iterator[str]:
    """The causes of the verdict's family. Names ranks if only a few of them have these causes."""
    if case.family == "compute":
        return
    few = _concentrated(case)
    chosen = [rank for rank in case.account.ranks if rank.rank in few.ranks] or case.account.ranks
    who = few.text or ("the rank" if len(chosen) == 1 else f"all {len(chosen)} ranks")
    spent = {
        cause: sum(rank.seconds[cause] for rank in chosen)
        for cause, family in CAUSE_FAMILY.items()
        if family == case.family
    }
    if "host" in spent:
        spent["host"] -= sum(rank.gaps or 0.0 for rank in chosen)  # see `_gaps`
    for cause, seconds in sorted(spent.items(), key=lambda entry: -entry[1]):
        if seconds >= EVIDENCE_SHARE * case.window:
            yield f"{who}: {seconds:.1f} s {WORDS[cause]} ({cause})"


def _where_spent(case: Case) -> Iterator[str]:
    """The lines of the training's own code, and what else is known of the time that it takes."""
    yield from where.sentences(case.account)
    if case.family != "compute" and (asleep := where.unknown(case.account)):
        yield asleep


def _shortage(case: Case) -> Iterator[str]:
    """CPU time that the ranks did not get."""
    yield from shortage.sentences(case.account)


def _workers(case: Case) -> Iterator[str]:
    """What data workers were doing while the loop waited for them."""
    yield from workers.sentences(case.account)


def _waits(case: Case) -> Iterator[str]:
    """Which ranks waited for which late rank, and what made it late."""
    for rank, *_ in late_ranks(case):
        families: Seconds = {}
        for charge in case.charges:
            if charge.rank == rank and not charge.open:
                families[charge.family] = families.get(charge.family, 0.0) + charge.seconds
        waited = sum(families.values())
        waiting = [one.rank for one in case.account.ranks if one.rank != rank and one.seconds["straggler"] > 0]
        if waiting and waited >= LATE_SHARE * case.window and _unentered(case, rank) is None:
            ordered = sorted(families, key=lambda name: -families[name])
            chosen = [name for name in ordered if name == ordered[0] or families[name] >= ALSO_SHARE * waited]
            reasons = [_by(_named_work(case, rank, name)) for name in chosen]
            if len(chosen) > 1:
                reasons = [f"{by} ({families[name]:.1f} s)" for by, name in zip(reasons, chosen, strict=True)]
            where = _where(case, [rank])
            yield f"{named(waiting)} waited {waited:.1f} s for rank {rank}{where}, which was late{' and'.join(reasons)}"


def _named_work(case: Case, rank: int, family: str) -> str:
    """What to call the reason why a rank was late by ``family``."""
    [late] = [one for one in case.account.ranks if one.rank == rank] or [None]
    work = _work(case, late, family) if late is not None else ""
    if late is not None and family == "straggler" and _is_unexplained(case, late):
        return "unattributed"
    return work or ("compute" if family == "straggler" else family)


def _own_files(case: Case) -> Iterator[str]:
    """Files that the loop's own code writes and reads."""
    yield from own_files.sentences(case.account)


def _groups(case: Case) -> Iterator[str]:
    """The groups whose transfers took long, if the verdict is network."""
    if case.family == "network":
        for entry in late_groups(case)[:2]:
            ranks = entry["ranks"]
            if entry["family"] == "network" and isinstance(ranks, list) and ranks:
                share = entry["share"]
                yield f"transfers in the group {entry['group']} ({named(ranks)}): {100 * share:.0f} % of the time"  # type: ignore[operator]


def _bubble(case: Case) -> Iterator[str]:
    """The waits of pipeline stages for each other, compared with what the schedule alone costs."""
    waited = sum(rank.seconds["pipeline"] for rank in case.account.ranks)
    if waited >= UNSPLIT_SHARE * case.window:
        schedule = sum(rank.bubble for rank in case.account.ranks)
        latency = sum(group.latency for rank in case.account.ranks for group in rank.groups.values())
        later = ", a part of it in collectives" if schedule > waited else ""
        slow = f"; slow transfers made {latency:.1f} s of it" if latency >= EVIDENCE_SHARE * case.window else ""
        yield (
            f"stages waited {waited:.1f} s for one another; the schedule alone costs at least {schedule:.1f} s "
            f"((stages - 1) / microbatches of the quickest stage's time){later}{slow}"
        )


def _gaps(case: Case) -> Iterator[str]:
    """The part of `host` that is compute in which devices ran nothing."""
    looked = [rank for rank in case.account.ranks if rank.gap_error is not None]
    counted = [rank for rank in case.account.ranks if rank.gaps is not None and rank.gap_error is None]
    for ranks, how in (
        (
            looked,
            "± {error:.1f} s in which the GPU had no work: {empty} of {looks} looks found its stream empty in compute "
            "(an estimate where kernels take some µs; counted as host)",
        ),
        (
            counted,
            "s between kernels, in which the GPU's own counters show that nothing ran (sampled; counted as host)",
        ),
    ):
        seconds = sum(rank.gaps or 0.0 for rank in ranks)
        if seconds >= EVIDENCE_SHARE * case.window:
            said = how.format(
                empty=sum(rank.empty_looks for rank in ranks),
                looks=sum(rank.looks for rank in ranks),
                error=sqrt(sum((rank.gap_error or 0.0) ** 2 for rank in ranks)),
            )
            yield f"{named([rank.rank for rank in ranks])}: {seconds:.1f} {said}"
    for rank in case.account.ranks:
        gaps = (rank.gaps or 0.0) >= EVIDENCE_SHARE * rank.wall
        if gaps and rank.line_looks >= max(LEAST_AT_A_LINE, AT_A_LINE * rank.busy_looks):
            yield (
                f"rank {rank.rank}: the loop was at {rank.line} in {rank.line_looks} of {rank.busy_looks} looks that "
                "found work on the GPU. If it waits for the GPU there (`.item()`, `synchronize()`), the GPU then runs"
                " out of work"
            )
        counted, found = rank.gaps_counted, rank.gaps_looked
        if counted is not None and found is not None and abs(counted - found) >= DIFFERS * rank.wall:
            yield (
                f"rank {rank.rank}: the GPU's own counters show {counted:.1f} s between kernels, and looks at its "
                f"stream {found:.1f} s. The smaller one counts"
            )


def _hangs(case: Case) -> Iterator[str]:
    yield from hang_sentences(case.account)


def hang_sentences(account: RunAccount) -> list[str]:
    return [
        f"rank {missing.ledger.rank} is missing: {named([ledger.rank for ledger in missing.waiting])} "
        f"waiting {missing.seconds:.1f} s in a collective that it has not entered "
        + (f"(it is in {missing.ledger.position.phase})" if missing.ledger.alive else "(its process has ended)")
        for missing in account.missing
    ] + [sentence(found) for found in account.unentered]


def _afterwards(case: Case) -> Iterator[str]:
    """The part of the verdict's family that ranks spent after their last steps."""
    if case.family == "compute":
        return
    for cause, seconds in sorted(_own_afterwards(case).items(), key=lambda entry: -entry[1]):
        if seconds >= EVIDENCE_SHARE * case.window:
            yield f"{seconds:.1f} s {WORDS[cause]} ({cause}) came after the last step"
    if case.led and (waited := _waits_afterwards(case)) >= EVIDENCE_SHARE * case.window:
        yield f"{waited:.1f} s of the waits in collectives came after the last step"


def _own_afterwards(case: Case) -> Seconds:
    """What the ranks did themselves in the verdict's family after their last steps, by cause."""
    found: Seconds = {}
    for rank in case.account.ranks:
        for cause, seconds in rank.afterwards.items():
            if CAUSE_FAMILY[cause] == case.family and cause not in WAIT_CAUSES:
                found[cause] = found.get(cause, 0.0) + seconds
    return found


def _waits_afterwards(case: Case) -> float:
    return sum(rank.afterwards.get("collective", 0.0) for rank in case.account.ranks)


def _is_afterwards(case: Case) -> bool:
    """Whether most of the verdict's seconds came after the last steps."""
    waited = _waits_afterwards(case) if case.led or case.family == "communication" else 0.0
    return sum(_own_afterwards(case).values()) + waited >= MOST * case.totals[case.family]


def _unexplained_lateness(case: Case) -> Iterator[str]:
    """Straggler seconds without a late rank: its ledger is not here."""
    waited = sum(rank.seconds["straggler"] for rank in case.account.ranks)
    if waited >= EVIDENCE_SHARE * case.window and not any(
        rank.late or any(group.late_unexplained for group in rank.groups.values()) for rank in case.account.ranks
    ):
        yield f"{waited:.1f} s of waits for late ranks. None of them has a ledger here: they may be on another node"


def _unsplit(case: Case) -> Iterator[str]:
    waited = sum(rank.seconds["collective"] - rank.open_wait for rank in case.account.ranks)
    if waited < UNSPLIT_SHARE * case.window:
        return
    exchanged = all(rank.newest.hook_states["exchange"] == "active" for rank in case.account.ranks)
    if not exchanged:
        why = "not every rank has the hooks, or the exchange between them could not be set up"
    else:
        why = _uneven(case) or "they came after the last step, or the ranks have not exchanged them yet"
    yield f"{waited:.1f} s of waits in collectives could not be split into network and straggler: {why}"


def _uneven(case: Case) -> str:
    """Why waits could not be split, if some ranks took far fewer steps than others; otherwise empty."""
    steps = {rank.rank: rank.newest.steps for rank in case.account.ranks}
    fewest, most = min(steps, key=steps.__getitem__), max(steps, key=steps.__getitem__)
    if steps[fewest] > EVEN * steps[most] or len({rank.newest.attempt for rank in case.account.ranks}) > 1:
        return ""
    return (
        f"rank {fewest} took {steps[fewest]} steps and rank {most} {steps[most]}, and waits can be split only in steps"
        " that all ranks take"
    )


RULES: tuple[Callable[[Case], Iterator[str]], ...] = (
    _hangs,
    _shortage,
    _causes,
    _afterwards,
    _where_spent,
    _workers,
    _gaps,
    _waits,
    _own_files,
    _groups,
    _bubble,
    _unexplained_lateness,
    _unsplit,
)
