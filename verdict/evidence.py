"""The rules of evidence. Each yields the sentences, with numbers, that apply to a case. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import sqrt

from ..ledger.causes import CAUSE_FAMILY, CAUSE_ROW, DATA_CAUSES, FAMILIES
from . import allocator, by_mount, devices, link_words, modes, own_files, sampled, shortage, where, workers
from .accounts import RankAccount, RunAccount, Seconds
from .case import LATE_SHARE, VERDICT_SHARE, Case, late_groups, late_ranks
from .ends import every_rank, named
from .hang import Missing
from .headline import (
    concentrated,
    gaps_may_be_it,
    is_unexplained,
    never_came,
    on_node,
    own_afterwards,
    summary,
    unentered,
    waits_afterwards,
    work_of,
)
from .stuck import stuck_at
from .unentered import sentence

ALSO_SHARE = 0.3
"""The evidence names each family that has at least this share of the waits for a late rank."""


EVIDENCE_SHARE = 0.01
"""The evidence mentions a cause that has at least this share of the window."""


EVEN = 0.9
"""The evidence mentions the numbers of steps if one rank took at most this share of the steps of another."""


LEAST_AT_A_LINE, AT_A_LINE = 20, 0.6
"""The evidence names the line at which the loop is while its GPU has work, if there were this many looks at it, and
this share of all."""
ALL_AT_A_LINE = 8
"""Eight looks are enough if all of them found it there. By chance, that happens in less than 2 % of the runs in which
the share is smaller."""


DIFFERS = 0.1
"""The evidence mentions the GPU's counters if they differ from a rank's looks by this share of its window."""


COVERS = 0.95
"""The evidence mentions how much of the compute counters cover if it is less than this share."""


UNSPLIT_SHARE = 0.05
"""The evidence mentions unsplit waits that have at least this share of the window."""


NEARLY = 0.8
"""The evidence names other families that have at least this share of the time of the verdict's."""


def _by(family: str) -> str:
    return " for an unknown reason" if family == "unattributed" else f" by {family}"


def _causes(case: Case) -> Iterator[str]:
    """The causes of the verdict's family. Names ranks if only a few of them have these causes."""
    if case.family == "compute" or (case.family == "pipeline" and _of_devices(case)):
        return
    few = concentrated(case)
    chosen = [rank for rank in case.account.ranks if rank.rank in few.ranks] or case.account.ranks
    who = few.text or ("the rank" if len(chosen) == 1 else every_rank(len(chosen)))
    spent = {
        cause: sum(rank.seconds[cause] for rank in chosen)
        for cause, family in CAUSE_FAMILY.items()
        if family == case.family
    }
    if "host" in spent:
        spent["host"] -= sum(rank.gaps or 0.0 for rank in chosen)  # see `_gaps`
    for cause, seconds in sorted(spent.items(), key=lambda entry: -entry[1]):
        if seconds >= EVIDENCE_SHARE * case.window:
            yield f"{who}: {seconds:.1f} s {workers.words_of(chosen, cause)} ({cause})"


def _other_families(case: Case) -> Iterator[str]:
    """The families that take nearly as much as the verdict's, or more."""
    least = max(NEARLY * case.totals[case.family], VERDICT_SHARE * case.window)
    for family in FAMILIES:
        seconds = case.totals[family]
        if family not in (case.family, "compute", "unattributed") and case.family != "compute" and seconds >= least:
            much = "more" if seconds > case.totals[case.family] else "nearly as much"
            share = f"{100 * seconds / case.window:.0f} %"
            other = replace(case, family=family)
            # A rank that is missing has one reason, which may be of another family.
            known = not (other.led and (case.account.missing or case.account.unentered))
            yield f"{family} takes {much}, {share}{f': {summary(other)}' if known else ''}"


def _where_spent(case: Case) -> Iterator[str]:
    """The lines of the training's own code, and what else is known of the time that it takes."""
    yield from sampled.sentences(case.account)
    yield from where.sentences(case.account)
    if case.family != "compute" and (asleep := where.unknown(case.account)):
        yield asleep


def _shortage(case: Case) -> Iterator[str]:
    """CPU time that the ranks did not get."""
    yield from shortage.sentences(case.account)


def _of_devices(case: Case) -> bool:
    """Whether some process drives several devices, which wait for one another."""
    return any(rank.busy for rank in case.account.ranks)


def _devices(case: Case) -> Iterator[str]:
    """How busy the devices of a process with several ones are, and what would use them all."""
    if said := devices.sentence(case.account.ranks):
        if case.family != "pipeline":
            yield said
        if any(devices.idle_share(rank.busy) >= devices.SOME for rank in case.account.ranks if rank.busy):
            yield devices.next_step(case.account.ranks)


def _allocator(case: Case) -> Iterator[str]:
    """How often torch's allocator gave device memory back."""
    yield from allocator.sentences(case.account.ranks)


def _modes(case: Case) -> Iterator[str]:
    """Modes in which programs are looked into, and which somebody has left on."""
    yield from modes.sentences(case.account.ranks)


def _of_evaluations(case: Case) -> Iterator[str]:
    """Waits for batches that the loop evaluates."""
    whole = sum(rank.seconds[cause] for rank in case.account.ranks for cause in DATA_CAUSES)
    spent = min(whole, sum(rank.eval_data for rank in case.account.ranks))
    if spent >= max(ALSO_SHARE * whole, LATE_SHARE * case.window):
        yield f"{spent:.1f} of {whole:.1f} s of the waits for batches were for batches of evaluations"


def _workers(case: Case) -> Iterator[str]:
    """What data workers were doing while the loop waited for them."""
    yield from workers.sentences(case.account)


def _mounts(case: Case) -> Iterator[str]:
    """The mounts at which much time was lost."""
    yield from by_mount.sentences(case.account)


def _waits(case: Case) -> Iterator[str]:
    """Which ranks waited for which late rank, and what made it late."""
    for rank, *_ in late_ranks(case):
        families: Seconds = {}
        for charge in case.charges:
            if charge.rank == rank and not charge.open:
                families[charge.family] = families.get(charge.family, 0.0) + charge.seconds
        for family, spent in never_came(case, rank)[0].items():
            families[family] = max(0.0, families.get(family, 0.0) - spent)
        waited = sum(families.values())
        waiting = [one.rank for one in case.account.ranks if one.rank != rank and one.seconds["straggler"] > 0]
        if waiting and waited >= LATE_SHARE * case.window and unentered(case, rank) is None:
            ordered = sorted(families, key=lambda name: -families[name])
            chosen = [name for name in ordered if name == ordered[0] or families[name] >= ALSO_SHARE * waited]
            reasons = [_by(_named_work(case, rank, name)) for name in chosen]
            if len(chosen) > 1:
                reasons = [f"{by} ({families[name]:.1f} s)" for by, name in zip(reasons, chosen, strict=True)]
            node = on_node(case, [rank])
            yield f"{named(waiting)} waited {waited:.1f} s for rank {rank}{node}, which was late{' and'.join(reasons)}"


def _named_work(case: Case, rank: int, family: str) -> str:
    """What to call the reason why a rank was late by ``family``."""
    [late] = [one for one in case.account.ranks if one.rank == rank] or [None]
    work = work_of(case, late, family) if late is not None else ""
    if late is not None and family == "straggler" and is_unexplained(case, late):
        return "unattributed"
    if late is not None and family == "straggler" and not work and gaps_may_be_it(case, late):
        return "compute, or by time in which its GPU had no work (too few looks tell which)"
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


def _links(case: Case) -> Iterator[str]:
    """The links that carry the transfers."""
    yield from link_words.sentences(case)


def _bubble(case: Case) -> Iterator[str]:
    """The waits of pipeline stages for each other, compared with what the schedule alone costs."""
    waited = sum(rank.seconds["pipeline"] for rank in case.account.ranks)
    if waited >= UNSPLIT_SHARE * case.window and not _of_devices(case):
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
    known = [rank for rank in case.account.ranks if rank.gaps is not None]
    for ranks, how in (
        (
            [rank for rank in known if not rank.gaps_by.by_counters],
            "± {error:.1f} s in which the GPU had no work: {empty} of {looks} looks found its stream empty in compute "
            "(each stands for the time since the one before; an estimate where kernels take some µs; counted as host)",
        ),
        (
            [rank for rank in known if rank.gaps_by.by_counters],
            "s between kernels, in which the GPU's own counters show that nothing ran (sampled; counted as host)"
            "{covered}",
        ),
    ):
        seconds = sum(rank.gaps or 0.0 for rank in ranks)
        if seconds >= EVIDENCE_SHARE * case.window:
            said = how.format(
                empty=sum(rank.empty_looks for rank in ranks),
                looks=sum(rank.looks for rank in ranks),
                error=sqrt(sum((rank.gaps_by.error or 0.0) ** 2 for rank in ranks)),
                covered=_covered(ranks),
            )
            yield f"{named([rank.rank for rank in ranks])}: {seconds:.1f} {said}"
    for rank in case.account.ranks:
        gaps = (rank.gaps or 0.0) >= EVIDENCE_SHARE * rank.wall
        if gaps and _is_at_a_line(rank):
            yield (
                f"rank {rank.rank}: the loop was at {rank.line} in {rank.line_looks} of {rank.busy_looks} looks that "
                "found work on the GPU. If it waits for the GPU there (`.item()`, `synchronize()`), the GPU then runs"
                " out of work"
            )
        by = rank.gaps_by
        if by.counted is not None and by.looked is not None and abs(by.counted - by.looked) >= DIFFERS * rank.wall:
            yield (
                f"rank {rank.rank}: the GPU's own counters show {by.counted:.1f} s between kernels, and looks at its "
                f"stream {by.looked:.1f} s. The {'smaller one counts' if by.covered is None else 'counters count'}"
            )


def _is_at_a_line(rank: RankAccount) -> bool:
    every = rank.line_looks == rank.busy_looks >= ALL_AT_A_LINE
    return every or rank.line_looks >= max(LEAST_AT_A_LINE, AT_A_LINE * rank.busy_looks)


def _covered(ranks: Sequence[RankAccount]) -> str:
    """How much of the compute of these ranks counters cover, if it is not nearly all."""
    least = min((rank.gaps_by.covered for rank in ranks if rank.gaps_by.covered is not None), default=1.0)
    if least >= COVERS:
        return ""
    return f". They cover {100 * least:.0f} % of the compute; looks at its stream stand for the rest"


def hangs(case: Case) -> Iterator[str]:
    yield from hang_sentences(case.account)


def _state_of(missing: Missing) -> str:
    """What a missing rank does. A process that is stopped writes nothing, so its phase may be an older one."""
    if not missing.ledger.alive:
        return "(its process has ended)"
    if missing.silent:
        silent = f"it has given no sign of life for {missing.silent:.1f} s"
        return f"({silent}: it is stopped, or code of it holds Python's lock)"
    line = stuck_at(missing.ledger)
    return f"(it is in {missing.ledger.position.phase}{f', at {line}' if line else ''})"


def hang_sentences(account: RunAccount) -> list[str]:
    return [
        f"rank {missing.ledger.rank} is missing: {named([ledger.rank for ledger in missing.waiting])} "
        f"waiting {missing.seconds:.1f} s in a collective that it has not entered " + _state_of(missing)
        for missing in account.missing
    ] + [*map(sentence, account.unentered), *account.apart, *account.places_apart]


def _afterwards(case: Case) -> Iterator[str]:
    """The part of the verdict's family that ranks spent after their last steps."""
    if case.family == "compute":
        return
    for cause, seconds in sorted(own_afterwards(case).items(), key=lambda entry: -entry[1]):
        # Looks may have shown that it was something else, such as a logger.
        seconds = min(seconds, sum(rank.seconds[cause] for rank in case.account.ranks))
        if seconds >= EVIDENCE_SHARE * case.window:
            yield f"{seconds:.1f} s {CAUSE_ROW[cause].words} ({cause}) came after the last step"
    if case.led and (waited := waits_afterwards(case)) >= EVIDENCE_SHARE * case.window:
        yield f"{waited:.1f} s of the waits in collectives came after the last step"


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
    if case.account.apart:
        why = "ranks were in different collectives"
    elif not exchanged:
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
    hangs,
    _other_families,
    _shortage,
    _causes,
    _afterwards,
    _where_spent,
    _of_evaluations,
    _workers,
    _mounts,
    _gaps,
    _waits,
    _own_files,
    _groups,
    _links,
    _devices,
    _allocator,
    _modes,
    _bubble,
    _unexplained_lateness,
    _unsplit,
)
