"""`whyidle.signals()`: where the time since the last call went, and advice, from inside the training.

The user's loop calls it; hooks never do. The caller passes a copy of the rank's own ledger, because a process that
opens and closes its own ledger would drop the lock by which others see that it is alive. The ledgers of the run's other
ranks on this node are read from the directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..ledger.clock import own_clock
from ..ledger.directory import age, drop_duplicates, ledger_paths, run_of
from ..ledger.reader import Ledger, LedgerError, parse_ledger, read_ledger
from ..verdict.accounts import RankAccount, RunAccount, account, shares
from ..verdict.sampled import Sampled
from .advice.case import Case, Counters, basis_of
from .advice.rule import Advice
from .advice.table import advise

MOST_STEPS = 256
"""The most steps, of all ranks together, that advice replays, so that a call is quick."""
Shares = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Past:
    """The totals of a rank at the end of a window, counted from its first step. Seconds."""

    wall: float
    steps: int
    attempt_steps: int
    seconds: Shares
    totals: Mapping[str, float]
    """By the names in _TOTALS."""
    rollout_parts: Shares
    gaps_in: Shares
    moved: Sampled


@dataclass(frozen=True, slots=True)
class Signals:
    """The last window of a run. Shares are of the window's time, from 0 to 1."""

    reason: str = ""
    """Why the other fields are empty; itself empty if they are filled."""
    seconds: float = 0.0
    """The length of the window."""
    steps: int = 0
    """The steps of this rank in the window."""
    causes: Shares = field(default_factory=dict)
    """The shares of this rank by cause. Waits that are not split yet are in `collective`."""
    families: Shares = field(default_factory=dict)
    """The shares of this rank by family."""
    run_families: Shares = field(default_factory=dict)
    """The shares by family of all ranks of the run that have ledgers here."""
    ranks: int = 0
    """The number of ranks with ledgers here, this one included."""
    world_size: int = 0
    advice: tuple[Advice, ...] = ()
    """Advice from the ranks with ledgers here, for this window. The change with the largest gain comes first."""
    past: Mapping[int, Past] = field(default_factory=dict, repr=False)
    """The totals by rank, which the next call subtracts."""

    def find(self, rule: str) -> Advice | None:
        """The advice of a rule, such as `data.workers`; None if the rule does not apply."""
        return next((one for one in self.advice if one.id == rule), None)


_last = Signals()
OwnLedger = Callable[[], "tuple[str, bytes] | None"]


def signals(own_ledger: OwnLedger, since: Signals | None = None) -> Signals:
    """The signals since the last call, or since the window that ended with ``since``. Never raises.

    ``own_ledger`` returns the path and a copy of the calling rank's ledger, or None if the process is not recorded.
    """
    global _last
    try:
        own = own_ledger()
        if own is None:
            return Signals("this process is not recorded: call whyidle.attach() first, or use `whyidle run`")
        found = _look(*own, (_last if since is None else since).past)
    except Exception as error:  # the fence around the training
        return Signals(f"the ledgers cannot be read: {error!r}")
    if since is None and not found.reason:
        _last = found
    return found


def _look(path: str, raw: bytes, past: Mapping[int, Past]) -> Signals:
    own = parse_ledger(raw, path, alive=True)
    if not own.window_ns:
        return Signals("this rank has not begun its first step")
    ledgers = [own, *other_ranks(own)]
    whole = account(run_of(own), ledgers, time.monotonic_ns())
    now = {rank.rank: _past(rank) for rank in whole.ranks}
    before = past if _same_attempt(past, now) else {}
    ranks = [_since(rank, before.get(rank.rank)) for rank in whole.ranks]
    mine = next((rank for rank in ranks if rank.rank == own.rank), None)
    if mine is None or mine.wall <= 0:
        return Signals("no time has passed since the last call")
    run = RunAccount(whole.run, ranks, [], whole.owner)
    return Signals(
        seconds=mine.wall,
        steps=mine.steps,
        causes=shares(mine.seconds, mine.wall),
        families=shares(mine.family_seconds(), mine.wall),
        run_families=shares(run.family_seconds(), run.rank_seconds),
        ranks=len(ranks),
        world_size=own.world_size,
        advice=tuple(_advice(run, before)),
        past=now,
    )


def other_ranks(own: Ledger) -> list[Ledger]:
    """The newest ledger of each other rank of the same run and user in this rank's directory."""
    found: list[Ledger] = []
    itself = os.stat(own.path)
    try:
        for path in ledger_paths(os.path.dirname(own.path)):
            try:
                if os.path.samestat(os.lstat(path), itself):
                    continue
                one = read_ledger(path, steps=True)
            except (OSError, LedgerError):
                continue
            if run_of(one) == run_of(own) and one.uid == itself.st_uid and one.attempt == own.attempt:
                found.append(one)
    except LedgerError:  # there are more ledgers than are read
        pass
    newest = {one.rank: one for one in sorted(drop_duplicates(found)[0], key=age) if one.rank != own.rank}
    return [*newest.values()]


_TOTALS = (
    *("gaps", "eval_data", "data_own_cpu", "skipped_batches", "skipped", "skips", "data_gone", "no_grad", "bubble"),
    *("lock", "awake", "eval_idle", "new_groups", "new_group", "host_write", "cpu_asked", "cpu_stolen", "cpu_queued"),
)
"""Fields of a RankAccount that add up over the run and that advice compares with the window."""


def _past(rank: RankAccount) -> Past:
    totals = {name: getattr(rank, name) or 0 for name in _TOTALS}
    apart = rank.rollout_parts, rank.gaps_in, rank.moved
    return Past(rank.wall, rank.steps, rank.newest.steps, dict(rank.seconds), totals, *apart)


def _same_attempt(past: Mapping[int, Past], now: Mapping[int, Past]) -> bool:
    return all(rank in past and past[rank].steps <= one.steps for rank, one in now.items())


def _since(rank: RankAccount, past: Past | None) -> RankAccount:
    """The account of a rank since ``past``.

    A wait is split some time after it was recorded, perhaps in the next window. A cause that would become negative
    because of that is 0.
    """
    if past is None:
        return rank
    totals: dict[str, Any] = {
        name: max(0, getattr(rank, name) - past.totals[name]) for name in _TOTALS if getattr(rank, name)
    }
    return replace(
        rank,
        wall=rank.wall - past.wall,
        steps=rank.steps - past.steps,
        seconds=_grown(rank.seconds, past.seconds),
        rollout_parts=_grown(rank.rollout_parts, past.rollout_parts),
        gaps_in=_grown(rank.gaps_in, past.gaps_in),
        moved=_grown(rank.moved, past.moved),
        **totals,
    )


def _grown(now: Mapping[Any, float], before: Mapping[Any, float]) -> dict[Any, float]:
    return {key: max(0.0, value - before.get(key, 0.0)) for key, value in now.items()}


def _advice(run: RunAccount, past: Mapping[int, Past]) -> Sequence[Advice]:
    after = max((one.attempt_steps for one in past.values()), default=0)
    basis, why_not = basis_of(run, after, MOST_STEPS)
    here = [rank for rank in run.ranks if rank.newest.strings["boot"] == own_clock().boot]
    cpus = float(len(os.sched_getaffinity(0))) if len(here) == len(run.ranks) else None
    return advise(Case(run, basis, why_not, None, Counters(cpus=cpus)))
