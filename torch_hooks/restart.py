"""What the ledgers of other processes say about this one: is it a rank, and how far had earlier attempts come?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ..ledger.directory import ledger_paths, read_directory, run_of
from ..ledger.layout import BRANCHED, CLEAN, INTERRUPTED
from ..ledger.reader import Ledger, LedgerError, Saved, parse_ledger, read_ledger
from ..ledger.text import with_suffix
from .identity import Identity


class Restart(NamedTuple):
    attempt: int
    """The number of this attempt, from 0."""
    steps: int
    """Steps that an earlier attempt had finished, since the last branch; 0 if there was none."""
    checkpoint_step: int
    """The step of the newest checkpoint of an earlier attempt; -1 if there was none."""
    finished: bool
    """Whether the earlier attempts had come to their end, as far as is known. This one is then another training, unless
    it restores a checkpoint."""
    saved_by: int = -1
    """The attempt that has the newest checkpoint; -1 if it is not known."""
    by_launcher: bool = False
    """Whether a launcher or a scheduler has started this attempt again."""
    command: int = 0
    """`command_hash` of the attempt before this one; 0 if it is not known."""
    saves: tuple[Saved, ...] = ()
    """The last saves of all earlier attempts."""


FIRST = Restart(0, 0, -1, finished=False)
"""No earlier attempt is known."""


def started_by_rank(directory: str) -> bool:
    """Whether a live rank of this user is the parent of this process. Never raises."""
    parent = os.getppid()
    try:
        # The name of a ledger has the pid of its rank, so that only the parent's is read.
        named = [path for path in ledger_paths(directory) if f"-{parent}-" in os.path.basename(path)]
        ledgers = [read_ledger(path) for path in named]
    except LedgerError:
        return False
    return any(ledger.alive and ledger.visible_pid == parent and ledger.uid == os.geteuid() for ledger in ledgers)


def own_ledgers(directory: str, except_path: str = "") -> list[Ledger]:
    """The ledgers of this user, for the functions below. Those of others are ignored. Never raises.

    ``except_path``: that of this process, if it has one already.
    """
    return read_directory(directory, uid=os.geteuid(), own=except_path)[0]


def alive_beside(copy: bytes, path: str) -> int:
    """How many other ranks of a run are alive on this node; -1 if that is not known. Never raises.

    ``copy``: of the ledger of this process, whose file is ``path``.
    """
    try:
        own = parse_ledger(copy, path, alive=True)
    except LedgerError:
        return -1
    others = own_ledgers(os.path.dirname(path), path)
    me = (*run_of(own), own.node, own.attempt)
    return sum(one.alive and (*run_of(one), one.node, one.attempt) == me for one in others)


def name_beside(ledgers: Sequence[Ledger], who: Identity, created_unix_ns: int) -> str:
    """The name of a training with one rank, whose ledger was created at this moment, at its first step.

    Several such trainings may run at the same time in one allocation of a scheduler or in one container, for example
    one per GPU. They are not one run, although they have the same name. The first one keeps the name. The others add
    their pid to it.
    """
    taken = any(
        one.alive
        and one.visible_pid
        and (one.owner, one.run, one.node, one.rank) == (who.owner, who.run, who.node, who.rank)
        and one.created_unix_ns < created_unix_ns
        for one in ledgers
    )
    return with_suffix(who.run, f"-{who.pid}") if taken else who.run


def name_of(ledgers: Sequence[Ledger], who: Identity) -> str:
    """The name of the run.

    A run that is named after a port has a number behind it if a training before it had the same port and ended well:
    it is another training. If that one failed, this one may be its restart, and has the same name.
    """
    if not who.by_port:
        return who.run
    before: dict[int, list[Ledger]] = {}
    for one in ledgers:
        number = _number_of(one.run, who.run)
        # A rank of this training may have ended already, but not before this process started.
        over = not one.alive and one.last_sign_ns < who.start_ns
        if over and number and (one.owner, one.node) == (who.owner, who.node):
            before.setdefault(number, []).append(one)
    if not before:
        return who.run
    newest = max(before)
    number = newest + 1 if not who.attempt and _ended_well(before[newest]) else newest
    return who.run if number == 1 else f"{who.run}-{number}"


def _number_of(run: str, name: str) -> int:
    """1 for the name itself, n for `<name>-<n>`, 0 for other names."""
    rest = run.removeprefix(f"{name}-")
    return 1 if run == name else int(rest) if rest != run and rest.isdecimal() and len(rest) < 7 else 0


def restart_of(ledgers: Sequence[Ledger], who: Identity) -> Restart:
    """What the ended ledgers of earlier attempts of the same run say.

    The number of the attempt follows from this rank's own ledgers. The finished and saved steps are the highest of any
    rank, because often only rank 0 saves.
    """
    me = (who.pid, who.pid_start_ticks)  # this process may have been detached and attached again
    ended = [
        one
        for one in ledgers
        if (*run_of(one), one.alive) == (who.owner, who.run, False)
        and (one.pid, one.pid_start_ticks, one.node) != (*me, who.node)
    ]
    own = [one.attempt for one in ended if one.rank == who.rank]
    attempt = max(who.attempt, max(own, default=-1) + 1)
    earlier = [one for one in ended if one.attempt < attempt]
    if not earlier or not who.resumable:
        return Restart(attempt, 0, -1, finished=False)
    branches = [one.attempt for one in earlier if one.beginning == BRANCHED]
    line = [one for one in earlier if one.attempt >= max(branches, default=0)]
    checkpoint_step, saved_by = _newest_checkpoint(line)
    # The command lines of other ranks may differ.
    newest = max(earlier, key=lambda one: (one.attempt, one.rank == who.rank))
    return Restart(
        attempt,
        max(one.base_step + one.steps for one in line),
        checkpoint_step,
        finished=not who.attempt and _ended_well(earlier),
        saved_by=saved_by,
        by_launcher=who.attempt > 0,
        command=newest.command_hash,
        saves=tuple(save for one in earlier for save in one.saves),
    )


def _newest_checkpoint(ledgers: Sequence[Ledger]) -> tuple[int, int]:
    """Its step, and the attempt that has saved it; -1 for what is not known.

    An attempt that has saved nothing has the checkpoint that it has restored.
    """
    for attempt in sorted({one.attempt for one in ledgers}, reverse=True):
        own = [one for one in ledgers if one.attempt == attempt]
        if (saved := max(one.checkpoint_step for one in own)) >= 0:
            return saved, attempt
        restored = max(own, key=lambda one: one.restored_step)
        if restored.restored_step:
            return restored.restored_step - 1, restored.restored_attempt - 1
    return -1, -1


def _ended_well(ledgers: Sequence[Ledger]) -> bool:
    """Whether no rank of the newest attempt failed or was killed."""
    last = max(one.attempt for one in ledgers)
    return all(one.ended in (CLEAN, INTERRUPTED) or one.has_returned for one in ledgers if one.attempt == last)
