"""How much of a rank's compute its device was idle: by the device's counters, and by the rank's looks at its stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

from ..ledger.causes import CAUSE_FAMILY, WORK_CAUSES
from .devices import idle_together

if TYPE_CHECKING:
    from ..ledger.reader import Ledger
    from .accounts import RankAccount

LEAST_LOOKS, MANY_LOOKS, FEW_SECONDS = 20, 100, 5.0
"""With fewer looks at a rank's stream, the share of empty ones counts only if most agree: its standard error is not
above that of LEAST_LOOKS of which half are empty, eleven points, or SURE of them leave LEAST_IDLE of the time. In runs
of less than FEW_SECONDS it takes MANY_LOOKS: their first steps are not like the others. They have these only with a
larger share of a core."""
SURE, LEAST_WORKED, LEAST_IDLE = 3.0, 0.02, 0.1
"""Work in `host` is compute if it is more than SURE standard errors of the looks, and LEAST_WORKED of the wall."""
ALIKE = 0.1
"""Ranks whose shares of compute differ by more do not stand for one another."""
WORKED = tuple(cause for cause in WORK_CAUSES if CAUSE_FAMILY[cause] == "compute")
"""The causes of work that may contain launch gaps. Repeated steps stay `recompute`."""


class Idle(NamedTuple):
    """What an agent knows of one rank, in seconds."""

    seconds: float
    """Compute in which no kernel ran on its GPU."""
    covered: float = 0.0
    """The compute for which integrated counters of the GPU (GPM) say this. 0: only samples of its utilisation do."""


class Gaps(NamedTuple):
    """Idle time in compute, in seconds. None: not known."""

    seconds: float | None = None
    error: float | None = None
    """The standard error; None: not from looks."""
    looked: float | None = None
    """According to the looks alone."""
    counted: float | None = None
    """According to the counters alone."""
    covered: float | None = None
    """The part of compute that integrated counters cover, up to 1. None: there are none."""

    @property
    def by_counters(self) -> bool:
        """Whether counters of the device decide most of it."""
        return self.error is None or (self.covered or 0.0) >= 0.5


NO_GAPS = Gaps()
FEW = 5
"""With fewer looks at something, it is not named, and nothing is moved to it."""


def enough(looks: int, seconds: float, empty: float = 0.5, like: float = 0.0) -> bool:
    """Whether looks, in a window of ``seconds``, tell the share of it in which a device was idle.

    ``empty``: that share, according to them. ``like``: how many looks at equal distances would be as sure; 0: that does
    not count.
    """
    if seconds < FEW_SECONDS:
        return seconds > 0 and looks >= MANY_LOOKS
    if looks >= LEAST_LOOKS:
        return True
    if looks < FEW or like <= 0:
        return False
    share, error = _one_more(empty, like), _error(empty, 1.0, like)
    return error <= _error(0.5, 1.0, LEAST_LOOKS) or share - SURE * error >= LEAST_IDLE


def shares_of_looks(ledger: Ledger) -> tuple[float, float, float]:
    """The shares of the time in which the stream was empty, in compute and in `host`, and how many looks at equal
    distances would be as sure. Each look stands for the time since the one before: early ones are more frequent."""
    looks, ns = max(1, ledger.looks), ledger.words["looked_ns"][0]
    empty, in_host = min(ledger.empty_looks, looks), min(ledger.words["empty_host_looks"][0], looks)
    if ns <= 0:
        return empty / looks, in_host / looks, ledger.looks
    square = ledger.words["looked_square"][0] * 1e12
    parts = [min(1.0, ledger.words[name][0] / ns) for name in ("empty_ns", "empty_host_ns")]
    return parts[0], parts[1], min(looks, ns * ns / square) if square else looks


def weighed(ledger: Ledger, looks: int, ns: int, of: str) -> float:
    """How many of the looks of ``of`` these would be at equal distances. ``looks``: how many they are; ``ns``: for how
    long they stand. Few looks do not become more than they are: one may stand for seconds."""
    whole, whole_ns = (ledger.words[f"{of}_{word}"][0] for word in ("looks", "looked_ns"))
    if whole_ns <= 0:
        return looks
    found = whole * min(1.0, ns / whole_ns)
    return found if looks >= FEW else min(looks, found)


def effective(ledger: Ledger, looks: int) -> float:
    """How many looks at equal distances would be as sure as these ``looks`` at the training thread."""
    ns, square = ledger.words["base_looked_ns"][0], ledger.words["base_looked_square"][0] * 1e12
    return looks * min(1.0, ns * ns / square / max(1, ledger.base_looks)) if square else looks


def gaps(compute: float, idle: Idle | None, looks: float, empty: float, seconds: float) -> Gaps:
    """Looks at the stream found it without work in compute for ``empty`` of ``seconds``. ``looks``: how many at equal
    distances would be as sure, 0 if there were too few. ``compute``: seconds.

    Integrated counters are within two points of a profiler, and looks only within ten where the host is hardly ahead of
    its device (docs/device-clock.md). So these counters decide where they cover compute, and looks decide about the
    rest. Samples of the utilisation are not better than looks, so the smaller of these two figures counts: it includes
    idle time in waits of the host, and looks find too much where kernels are very short.
    """
    looked = error = None
    if looks > 0:
        # At least one look more may have found work.
        looked = min(compute * (looks + 1) / (looks + 2), empty)
        error = _error(empty, seconds, looks)
    if idle is None:
        return Gaps(looked, error, looked)
    found = min(max(0.0, idle.seconds), compute)
    if idle.covered <= 0:
        if looked is None or looked > found:
            return Gaps(found, None, looked, found)
        return Gaps(looked, error, looked, found)
    covered = min(1.0, idle.covered / compute) if compute > 0 else 1.0
    rest = 1 - covered
    return Gaps(
        min(compute, found + (looked or 0.0) * rest),
        error * rest if error is not None and rest else None,
        looked,
        min(compute, found / covered) if covered else found,
        covered,
    )


def _error(empty: float, seconds: float, looks: float) -> float:
    """The standard error of a binomial share, in seconds, with one more look of each kind: not 0 where all agree."""
    share = _one_more(empty / seconds, looks)
    return seconds * sqrt(share * (1 - share) / looks)


def _one_more(share: float, looks: float) -> float:
    """A share of looks, with one more of each kind."""
    return (min(1.0, share) * looks + 1) / (looks + 2)


def move_worked(account: RankAccount) -> None:
    """Moves what a device worked on in `host` to `compute`: a loop may launch work between two steps that no hook sees.
    Looks find a device that is idle there."""
    if not enough(account.looks, account.looked):
        return
    causes = [cause for of, cause in account.moved if of == "host"]
    whole = account.seconds["host"] + sum(account.moved["host", cause] for cause in causes)
    error = _error(account.empty_host, account.looked, account.effective_looks)
    worked = whole - account.empty_host
    if worked < max(SURE * error, LEAST_WORKED * account.wall):
        return
    left = 1 - worked / whole
    for cause in causes:
        account.seconds[cause] -= (1 - left) * account.moved["host", cause]
        account.moved["host", cause] *= left
    account.seconds["host"] *= left
    account.seconds["compute"] += worked
    account.worked = worked


def pool(ranks: Sequence[RankAccount]) -> None:
    """Lets ranks of a run that compute alike know together what some have too few looks to know. Each of those is taken
    to be idle for the mean share of all."""
    asked = [rank for rank in ranks if rank.newest.device != "cpu" and rank.looked and rank.effective_looks]
    few = [rank for rank in asked if not _knows(rank)]
    computes = [sum(rank.seconds[cause] for cause in WORKED) / rank.wall for rank in asked if rank.wall]
    if not few or len(computes) < len(asked) or max(computes) - min(computes) > ALIKE:
        return
    like = sum(rank.effective_looks for rank in asked)

    def mean(empty: Callable[[RankAccount], float]) -> float:
        return sum(rank.effective_looks * empty(rank) / rank.looked for rank in asked) / like

    share = mean(lambda rank: rank.empty)
    if not enough(sum(rank.looks for rank in asked), min(rank.looked for rank in few), share, like):
        return
    by = {cause: mean(lambda rank, cause=cause: rank.empty_by.get(cause, 0.0)) for cause in WORK_CAUSES}
    for rank in few:
        rank.pooled_looks = like / len(asked)
        rank.empty, rank.empty_by = share * rank.looked, {cause: part * rank.looked for cause, part in by.items()}


def _knows(account: RankAccount) -> bool:
    return enough(account.looks, account.looked, account.empty / account.looked, account.effective_looks)


def move_gaps(account: RankAccount, idle: Idle | None) -> None:
    """Moves work in which the device ran nothing to `host`: from each cause as looks have found it, because counters do
    not know in which it was."""
    told = sum(spent for (of, _), spent in account.moved.items() if of in WORK_CAUSES)
    if told and account.looked:
        left = max(0.0, account.empty - told) / account.empty if account.empty else 0.0
        account.empty *= left
        for (of, _), spent in account.moved.items():
            if of in account.empty_by:
                account.empty_by[of] = max(0.0, account.empty_by[of] - spent)
        account.empty_looks = round(account.empty_looks * left)
        account.work_looks = max(round(account.work_looks * left), account.lock_looks)
        idle = idle._replace(seconds=max(0.0, idle.seconds - told)) if idle is not None else None
    worked = {cause: account.seconds[cause] for cause in WORKED}
    whole = sum(worked.values())
    looks = account.pooled_looks or (account.effective_looks if account.looked and _knows(account) else 0.0)
    account.gaps_by = gaps(whole, idle, looks, account.empty, account.looked)
    account.gaps = account.gaps_by.seconds
    if account.gaps is not None and account.busy:  # its stream is also empty while another device works for it
        account.gaps = min(account.gaps, account.wall * idle_together(account.busy))
    if account.gaps is not None and whole > 0:
        for cause, seconds in _split(account.gaps, worked, account.empty_by).items():
            account.gaps_in[cause] = seconds
            account.gaps_of[cause] = seconds / worked[cause] if worked[cause] else 0.0
            account.seconds[cause] -= seconds
        account.seconds["host"] += account.gaps


def _split(gaps: float, worked: dict[str, float], empty: dict[str, float]) -> dict[str, float]:
    """The part of gaps in each cause, at most all of it. ``empty``: what looks have found. Without it, and for what
    does not fit, they are in proportion to the work."""
    whole, found = sum(worked.values()), sum(empty.get(cause, 0.0) for cause in worked)
    if not found:
        return {cause: gaps * seconds / whole for cause, seconds in worked.items()}
    first = {cause: min(seconds, gaps * empty.get(cause, 0.0) / found) for cause, seconds in worked.items()}
    rest, left = gaps - sum(first.values()), whole - sum(first.values())
    part = rest / left if left > 0 else 0.0
    return {cause: spent + part * (worked[cause] - spent) for cause, spent in first.items()}
