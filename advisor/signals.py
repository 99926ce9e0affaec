"""`whyidle.signals()`: the shares of the last window and advice, from inside the training.

Called by the user's loop and never by a hook. The rank's own ledger is read as a copy: a process that opens its own
ledger and closes it would drop the lock by which others see that it lives. The ledgers of its run's other ranks are
read from the directory, as far as they are on this node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..ledger.causes import CAUSES
from ..ledger.clock import own_clock
from ..ledger.directory import age, drop_duplicates, ledger_paths, run_of
from ..ledger.reader import Ledger, LedgerError, parse_ledger, read_ledger
from ..verdict.accounts import RankAccount, RunAccount, account, shares
from .advice.case import Case, Counters, basis_of
from .advice.rule import Advice
from .advice.table import advise

MOST_STEPS = 256
"""Of all ranks together that advice is replayed from: a call must not take long."""
Shares = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Past:
    """How a rank stood at the end of a window, since its first step. Seconds."""

    wall: float
    steps: int
    attempt_steps: int
    seconds: Shares


@dataclass(frozen=True, slots=True)
class Signals:
    """Shares are of the time in the window, from 0 to 1."""

    reason: str = ""
    """Why there is nothing here; empty where there is."""
    seconds: float = 0.0
    """How long the window is."""
    steps: int = 0
    """Of this rank in it."""
    causes: Shares = field(default_factory=dict)
    """Of this rank, by cause; waits that await their split are in `collective`."""
    families: Shares = field(default_factory=dict)
    """The same by family."""
    run_families: Shares = field(default_factory=dict)
    """Of all ranks of the run that have ledgers here."""
    ranks: int = 0
    """How many those are, this one included."""
    world_size: int = 0
    advice: tuple[Advice, ...] = ()
    """For the run as far as it is seen here, in this window; what is worth most comes first."""
    past: Mapping[int, Past] = field(default_factory=dict, repr=False)
    """For the next call, by rank."""

    def find(self, rule: str) -> Advice | None:
        """What a rule says, such as `data.workers`; None where it is silent."""
        return next((one for one in self.advice if one.id == rule), None)


_last = Signals()
OwnLedger = Callable[[], "tuple[str, bytes] | None"]


def signals(own_ledger: OwnLedger, since: Signals | None = None) -> Signals:
    """``own_ledger`` gives path and copy of the calling rank's ledger. Never raises."""
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
    ledgers = [own, *_others(own)]
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


def _others(own: Ledger) -> list[Ledger]:
    """Ledgers of the same run and user in this rank's directory, of each other rank the newest."""
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
    except LedgerError:  # more ledgers than are read: those that were are in the list
        pass
    newest = {one.rank: one for one in sorted(drop_duplicates(found)[0], key=age) if one.rank != own.rank}
    return [*newest.values()]


def _past(rank: RankAccount) -> Past:
    return Past(rank.wall, rank.steps, rank.newest.steps, dict(rank.seconds))


def _same_attempt(past: Mapping[int, Past], now: Mapping[int, Past]) -> bool:
    return all(rank in past and past[rank].steps <= one.steps for rank, one in now.items())


def _since(rank: RankAccount, past: Past | None) -> RankAccount:
    """The account of a rank from a moment on. A split arrives later than its wait, and so may be of the window before:
    what would be less than nothing is nothing."""
    if past is None:
        return rank
    seconds = {cause: max(0.0, rank.seconds[cause] - past.seconds[cause]) for cause in CAUSES}
    return replace(rank, wall=rank.wall - past.wall, steps=rank.steps - past.steps, seconds=seconds)


def _advice(run: RunAccount, past: Mapping[int, Past]) -> Sequence[Advice]:
    after = max((one.attempt_steps for one in past.values()), default=0)
    basis, why_not = basis_of(run.ranks, after, MOST_STEPS)
    here = [rank for rank in run.ranks if rank.newest.strings["boot"] == own_clock().boot]
    cpus = float(len(os.sched_getaffinity(0))) if len(here) == len(run.ranks) else None
    return advise(Case(run, basis, why_not, None, Counters(cpus=cpus)))
