"""The reason in the headline of a verdict. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from ..ledger.causes import CAUSE_FAMILY, CAUSE_ROW, WAIT_CAUSES, WORK_CAUSES
from . import allocator, by_mount, devices, link_words, modes, sampled, shortage, where, workers
from .accounts import RankAccount, Seconds
from .case import LEAD_SHARE, Case
from .ends import dead_worker, named
from .lookthrough import LATE_BY
from .places import NOBODY, Named, most_of
from .unentered import Unentered, lateness
from .words import LATE_AFTERWARDS, LAUNCHES, SAID_OF_WORK, UNSEEN, WORK

MOST = 0.75


def summary(case: Case) -> str:
    """The reason in the headline, for example `rank 1 is late: data workers are blocked on reads`."""
    said = _headline(case)
    known = case.account.unentered or LATE_AFTERWARDS in said
    return said if known or case.family == "compute" or not _is_afterwards(case) else f"{said}, after the last step"


def _headline(case: Case) -> str:
    if case.family == "compute":
        unseen = any(rank.gaps_unknown for rank in case.account.ranks)
        but = where.unknown(case.account) or where.beside_the_model(case.account) or sampled.too_few(case.account.ranks)
        return (
            f"no other family takes a tenth of the time{f', {UNSEEN}' if unseen else ''}{f', but {but}' if but else ''}"
        )
    if case.take_turns:
        if case.family == "straggler":
            short = shortage.reason(case.account, case.late("straggler"))
            return f"ranks take turns at being late: {short or _compute_takes_longer(_lack_looks(case))}"
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
    few = NOBODY if case.family == "straggler" else concentrated(case)  # ranks that wait are not the reason
    if few.ranks:
        return f"{_who(case, few)}: {_reason(case, [rank for rank in case.account.ranks if rank.rank in few.ranks])}"
    return _reason(case)


def _waited_for(case: Case) -> dict[int, float]:
    """Rank -> how long others waited for it because of the verdict's family."""
    spent: dict[int, float] = {}
    for charge in case.charges:
        if charge.family == case.family:
            spent[charge.rank] = spent.get(charge.rank, 0.0) + charge.seconds
    return spent


def _who(case: Case, found: Named) -> str:
    """The text of the ranks, and their node if it does not say that already."""
    return found.text + (on_node(case, [*found.ranks]) if found.text == named([*found.ranks]) else "")


def _missing_reason(case: Case, late: RankAccount) -> str:
    for missing in case.account.missing:
        if missing.ledger.rank == late.rank:
            return f"others have been waiting {missing.seconds:.1f} s for it to enter a collective"
    if (found := unentered(case, late.rank)) is not None:
        waiting = named([wait.ledger.rank for wait in found.waits])
        return f"{waiting} waited {found.seconds:.1f} s in a collective that it never entered"
    if case.family == "straggler" and is_unexplained(case, late):
        return LATE_AFTERWARDS
    excess = _excess(case, late, case.family)
    if case.family == "straggler":
        if said := SAID_OF_WORK.get(work_of(case, late, case.family)):
            return said
        said = _compute_takes_longer(late.gaps_unknown)
        if gaps_may_be_it(case, late):
            said += ", or its GPU had no work meanwhile (too few looks tell which)"
        place = where.beside_the_model(case.account, [late])
        return f"{said}; {place}" if place else said
    cause = max(excess, key=lambda cause: (excess[cause], late.seconds[cause]))
    if said := _sampled([late], cause):
        return said
    if cause.startswith("data_"):
        return workers.reason_of_data([late], cause)
    said = CAUSE_ROW[cause].headline
    if _is_gaps([late], cause):
        return _in_gaps(case, [late])
    if cause in ("host", "host_blocked"):
        return _at_mount([late], where.reason(case.account, [late], said))
    if cause == "logging":
        return _at_mount([late], said)
    return _of_checkpoints([late], cause)


def _compute_takes_longer(unseen: bool) -> str:
    return CAUSE_ROW["compute"].headline + (f", {UNSEEN}" if unseen else "")


def _lack_looks(case: Case) -> bool:
    """Whether a good part of the waits was for ranks on whose devices nobody looked."""
    waited = _waited_for(case)
    unseen = sum(waited.get(rank.rank, 0.0) for rank in case.account.ranks if rank.gaps_unknown)
    return unseen >= LEAD_SHARE * sum(waited.values())


def gaps_may_be_it(case: Case, late: RankAccount) -> bool:
    """Whether a GPU without work may be half of the reason why a rank was late, and too few looks tell."""
    waited = sum(charge.seconds for charge in case.charges if (charge.rank, charge.family) == (late.rank, "straggler"))
    return late.gaps_unsure > 0 and 2 * late.gaps_unsure >= waited / max(1, len(case.account.ranks) - 1)


def unentered(case: Case, rank: int) -> Unentered | None:
    """The collective that a rank never entered, if that is most of what others waited for it."""
    waited = sum(charge.seconds for charge in case.charges if charge.rank == rank)
    for found in case.account.unentered:
        if rank in [ledger.rank for ledger in found.missing]:
            spent = sum(wait.seconds for wait in found.waits) / len(found.missing)
            return found if spent >= MOST * waited else None
    return None


def never_came(case: Case, rank: int) -> tuple[Seconds, float]:
    """The waits in collectives that a rank never entered, by the family of a charge, and for how long it had ended
    then. Other evidence tells of them."""
    found: Seconds = {}
    gone = 0.0
    for one in case.account.unentered:
        for missing in one.missing:
            if missing.rank != rank:
                continue
            own, _, dead = lateness(missing, one.waits[0])
            gone += dead
            times = sum(wait.seconds for wait in one.waits) / len(one.missing) / one.seconds
            for family, spent in [("straggler", dead), *own.items()]:
                family = LATE_BY.get(family, family)
                found[family] = found.get(family, 0.0) + times * spent
    return found, gone


def is_unexplained(case: Case, late: RankAccount) -> bool:
    """Whether it is not known why a rank was late for most of the time that others waited for it."""
    waited = sum(charge.seconds for charge in case.charges if (charge.rank, charge.family) == (late.rank, "straggler"))
    told, dead = never_came(case, late.rank)
    each = max(0.0, waited - told.get("straggler", 0.0)) / max(1, len(case.account.ranks) - 1)
    return sum(group.late_unexplained for group in late.groups.values()) - dead > MOST * each


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
            "compute": sum(rank.seconds[cause] for cause in WORK_CAUSES),
            "evaluation": rank.seconds["evaluation"],
            "rollout": rank.seconds["rollout"],
            "not_learned": rank.not_learned,
        }
    return {cause: rank.seconds[cause] for cause, of in CAUSE_FAMILY.items() if of == family}


def work_of(case: Case, late: RankAccount, family: str) -> str:
    """What a rank was doing when it was late; empty if WORK has no name for it."""
    excess, own = _excess(case, late, family), _own(late, family)
    whole = excess["compute"] if family == "straggler" else sum(excess.values())
    waited = sum(charge.seconds for charge in case.charges if (charge.rank, charge.family) == (late.rank, family))
    each = waited / max(1, len(case.account.ranks) - 1)  # on average, of the other ranks
    for cause, name in WORK.get(family, {}).items():
        if excess[cause] > 0 and excess[cause] >= MOST * whole and own[cause] >= MOST * each:
            return name
    return ""


def _reason(case: Case, few: Sequence[RankAccount] = ()) -> str:
    """``few``: the ranks that the headline names."""
    ranks = [*few] or case.account.ranks
    cause = _top_cause(ranks, case.family)
    if cause == "pipeline" and (said := devices.sentence(ranks)):
        return said
    gaps = _is_gaps(ranks, cause)
    if (gaps or cause == allocator.CAUSE_OF) and (said := allocator.reason(ranks, cause)):
        # If the program gives memory back and most gaps are in another place of its own code, that one is the reason.
        elsewhere = gaps and not any(map(allocator.retries_each_step, ranks)) and where.own_place(case.account, ranks)
        if not elsewhere:
            return said
    if gaps:
        said, queue = _in_gaps(case, ranks), shortage.beside(case.account, ranks)
        return f"{said}. {queue}" if queue and said.startswith((LAUNCHES, where.IDLE)) else said
    if cause in ("host", "host_blocked"):
        otherwise = shortage.reason_of_blocked(case.account) if cause == "host_blocked" else CAUSE_ROW[cause].headline
        return _at_mount(ranks, where.reason(case.account, ranks, otherwise))
    if said := _sampled(ranks, cause):
        return said
    if cause == "logging":
        return _at_mount(ranks, CAUSE_ROW[cause].headline)
    if cause.startswith("data_"):
        return _short(case, ranks, cause, workers.reason_of_data(ranks, cause))
    if cause in ("checkpoint_write", "checkpoint_read"):
        return _of_checkpoints(ranks, cause)
    if cause == "unattributed":
        return workers.reason_of_unattributed(ranks) or CAUSE_ROW[cause].headline
    if cause == "network":
        return link_words.reason(case, shortage.reason_of_transfers(case.account))
    said = CAUSE_ROW[cause].headline
    left = where.groups_left(ranks) if cause in ("compute_queue", "collective_queue") else ""
    return f"{said}: {left}" if left else _short(case, ranks, cause, said)


def _short(case: Case, ranks: list[RankAccount], cause: str, said: str) -> str:
    """With why CPUs are short, if that is the cause and it is known."""
    why = shortage.why(case.account, ranks) if cause in shortage.QUEUES else ""
    return f"{said}: {why}" if why else said


def _is_gaps(ranks: list[RankAccount], cause: str) -> bool:
    """Whether most of the time in a cause is compute in which devices had no work."""
    return cause == "host" and 2 * sum(rank.gaps or 0.0 for rank in ranks) > sum(rank.seconds["host"] for rank in ranks)


def _in_gaps(case: Case, ranks: list[RankAccount]) -> str:
    said, mounts = where.in_gaps(case.account, ranks), by_mount.blocked_on(ranks, "own")
    if (mode := modes.reason(ranks)) and not (
        where.is_locked_in_gaps(ranks) or where.in_most_gaps(case.account, ranks, "outside")
    ):
        return f"{LAUNCHES}, and {mode}"
    return f"{said}, blocked on {mounts}" if said.startswith(where.IDLE) and mounts else said or LAUNCHES


def _sampled(ranks: list[RankAccount], cause: str) -> str:
    kind = {"data_read": "data", "checkpoint_write": "save"}.get(cause)
    return sampled.reason(ranks, cause, by_mount.blocked_on(ranks, kind) if kind else "")


def _at_mount(ranks: list[RankAccount], said: str) -> str:
    mounts = by_mount.blocked_on(ranks, "own")
    return f"{said}, on {mounts}" if mounts else said


def _of_checkpoints(ranks: list[RankAccount], cause: str) -> str:
    said = {"checkpoint_write": by_mount.saves, "checkpoint_read": by_mount.restores}.get(cause)
    found = said(ranks) if said else ""
    return f"{CAUSE_ROW[cause].headline}: {found}" if found else CAUSE_ROW[cause].headline


def _top_cause(ranks: list[RankAccount], family: str) -> str:
    """Queues for a CPU count together, whoever queues: they have the same reason."""
    spent = {cause: sum(rank.seconds[cause] for rank in ranks) for cause, of in CAUSE_FAMILY.items() if of == family}
    top, queues = max(spent, key=spent.__getitem__), [cause for cause in spent if cause in shortage.QUEUES]
    if sum(spent[cause] for cause in queues) > spent[top]:
        return max(queues, key=spent.__getitem__)
    return top


def concentrated(case: Case) -> Named:
    """The few ranks or places that have most of the seconds of the verdict's family."""
    direct = {rank.rank: rank.family_seconds()[case.family] for rank in case.account.ranks}
    return most_of(direct, case.account)


def on_node(case: Case, numbers: list[int]) -> str:
    """` on node-7` if the run has several nodes and all of these ranks are on that one; otherwise empty."""
    nodes = case.conclusion.nodes
    theirs = {nodes.get(number, "") for number in numbers}
    [node] = theirs if len(theirs) == 1 else [""]
    return f" on {node}" if node and len({name for name in nodes.values() if name}) > 1 else ""


def own_afterwards(case: Case) -> Seconds:
    """What the ranks did themselves in the verdict's family after their last steps, by cause."""
    found: Seconds = {}
    for rank in case.account.ranks:
        for cause, seconds in rank.afterwards.items():
            if CAUSE_FAMILY[cause] == case.family and cause not in WAIT_CAUSES:
                found[cause] = found.get(cause, 0.0) + seconds
    return found


def waits_afterwards(case: Case) -> float:
    return sum(rank.afterwards.get("collective", 0.0) for rank in case.account.ranks)


def _is_afterwards(case: Case) -> bool:
    """Whether most of the verdict's seconds came after the last steps."""
    waited = waits_afterwards(case) if case.led or case.family == "communication" else 0.0
    return sum(own_afterwards(case).values()) + waited >= MOST * case.totals[case.family]
