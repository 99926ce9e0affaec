"""How much of a run was progress, over all its attempts. Pure functions.

Each second of each rank, from the start of its first process until now (or until its last sign of life), is in exactly
one part:

- `productive`: new steps
- `saving`: blocked in saves
- `lost`: steps that an earlier attempt had finished
- `stalled`: the time beyond a usual step, in steps that took much longer
- `startup`: until the first step of the first attempt
- `recovery`: from the last sign of life of an attempt until the first step of the next one

ETTR, the effective training time ratio, is productive / all (arXiv 2410.21680).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..ledger.causes import CAUSE, CHECKPOINT_KINDS
from ..ledger.directory import Run, age, drop_duplicates, run_of
from ..ledger.layout import FAILED
from ..ledger.reader import Ledger
from ..verdict.accounts import HANG_SECONDS, RankAccount, account
from ..verdict.ends import end_of, may_have_finished
from ..verdict.recent import SAVING
from .intervals import Rhythm, rhythm_of

PARTS: tuple[str, ...] = ("productive", "saving", "lost", "stalled", "startup", "recovery")
STALL_FACTOR = 10.0
"""A step has stalled if it takes longer than this many median steps, and longer than HANG_SECONDS. Its time beyond one
median step counts as stalled."""
_SAVE = CHECKPOINT_KINDS.index("save")
_SAVING_AT = [CAUSE[cause] for cause in SAVING]


@dataclass
class Attempt:
    """One attempt of a run, over all its ranks that have ledgers here."""

    number: int
    ranks: int
    alive: bool
    clean: bool | None
    """Whether all of its ranks exited without an error. None if it is not known."""
    steps: int
    repeated: int
    """How many of the steps an earlier attempt had finished."""
    saves: int
    start: float
    """Seconds of CLOCK_MONOTONIC, like `end`."""
    end: float
    startup: float
    """Seconds from its start to the first step, on the rank that took longest."""
    failed: bool = False
    """Whether one of its ranks is known to have ended with an error."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class Goodput:
    """The parts of a run's time, and its attempts."""

    owner: str
    run: str
    ranks: int
    world_size: int
    seconds: dict[str, float]
    """Rank-seconds by part."""
    computed: float
    """The rank-seconds of `productive` that were compute."""
    attempts: list[Attempt] = field(default_factory=list)
    blocked: float = 0.0
    """Seconds in saves, on the rank that they blocked longest."""
    blocked_cpu: float = 0.0
    """How many of the `blocked` seconds were on a CPU."""
    stepping: float = 0.0
    """Seconds from the first step to the end, summed over attempts, on the rank with the most."""
    rhythm: Rhythm | None = None
    """How often it saves; None if that was not seen."""

    @property
    def all(self) -> float:
        return sum(self.seconds.values())

    @property
    def ettr(self) -> float:
        return self.seconds["productive"] / self.all if self.all else 0.0

    @property
    def steps(self) -> int:
        return sum(attempt.steps for attempt in self.attempts)

    @property
    def saves(self) -> int:
        return sum(attempt.saves for attempt in self.attempts)

    @property
    def failures(self) -> int:
        """The number of attempts in which ranks failed or are known to have been killed. An attempt of which it is not
        known how it ended counts if another attempt followed it."""
        last = len(self.attempts) - 1
        return sum(
            not attempt.clean if number < last else attempt.clean is False and not attempt.alive
            for number, attempt in enumerate(self.attempts)
        )

    @property
    def watched(self) -> float:
        """Seconds from the first step to the end, summed over attempts: the time base of the mean time between
        failures. A startup after a failure does not count here, because it is recovery."""
        return sum(attempt.seconds - attempt.startup for attempt in self.attempts)

    @property
    def recoveries(self) -> list[float]:
        """For each failed attempt but the last, the seconds from its last sign of life to the first step of the next
        attempt."""
        pairs = zip(self.attempts, self.attempts[1:], strict=False)
        return [max(0.0, after.start - before.end) + after.startup for before, after in pairs if not before.clean]


def goodput(run: Run, ledgers: Iterable[Ledger], now_ns: int) -> Goodput:
    """The goodput of one run.

    ``ledgers`` may be of any run, and must have been read with their steps. ``now_ns`` is CLOCK_MONOTONIC.
    """
    believed, _ = drop_duplicates(ledger for ledger in ledgers if run_of(ledger) == run)
    by_attempt: dict[int, list[Ledger]] = {}
    by_rank: dict[int, list[Ledger]] = {}
    for ledger in sorted(believed, key=age):
        by_attempt.setdefault(ledger.attempt, []).append(ledger)
        by_rank.setdefault(ledger.rank, []).append(ledger)
    found = Goodput(run[0], run[1], len(by_rank), max((one.world_size for one in believed), default=0), {}, 0.0)
    found.seconds = dict.fromkeys(PARTS, 0.0)
    found.rhythm = rhythm_of(believed)
    for number in sorted(by_attempt):
        found.attempts.append(_attempt(number, by_attempt[number], now_ns))
    for attempts in by_rank.values():
        _add_rank(found, run, attempts, now_ns)
    return found


def _attempt(number: int, ledgers: Sequence[Ledger], now_ns: int) -> Attempt:
    return Attempt(
        number=number,
        ranks=len(ledgers),
        alive=any(ledger.alive for ledger in ledgers),
        clean=_clean(ledgers),
        steps=max(ledger.steps for ledger in ledgers),
        repeated=max(_repeated(ledger) for ledger in ledgers),
        saves=max(ledger.words["checkpoints"][_SAVE] for ledger in ledgers),
        start=min(ledger.start_ns for ledger in ledgers) / 1e9,
        end=max(_end(ledger, now_ns) for ledger in ledgers) / 1e9,
        startup=max((ledger.window_ns or _end(ledger, now_ns)) - ledger.start_ns for ledger in ledgers) / 1e9,
        failed=any(ledger.ended == FAILED for ledger in ledgers),
    )


def _clean(ledgers: Sequence[Ledger]) -> bool | None:
    ended = all(end_of(ledger) == "ended" for ledger in ledgers)
    return None if not ended and may_have_finished(ledgers) else ended


def _end(ledger: Ledger, now_ns: int) -> int:
    return max(ledger.last_sign_ns, now_ns) if ledger.alive else ledger.last_sign_ns


def _repeated(ledger: Ledger) -> int:
    """The number of steps of this attempt that an earlier attempt had finished."""
    return max(0, min(ledger.recompute_until, ledger.base_step + ledger.steps) - ledger.base_step)


def _add_rank(found: Goodput, run: Run, attempts: Sequence[Ledger], now_ns: int) -> None:
    saving = cpu = stepping = 0.0
    before: Ledger | None = None
    for ledger in attempts:
        (rank,) = account(run, [ledger], now_ns).ranks
        own = {cause: rank.seconds[cause] for cause in SAVING}
        stalled = _stalled(ledger, rank, now_ns)
        left = rank.wall - sum(own.values()) - stalled
        lost = left * _repeated(ledger) / ledger.steps if ledger.steps else 0.0
        parts = found.seconds
        parts["saving"] += sum(own.values())
        parts["stalled"] += stalled
        parts["lost"] += lost
        parts["productive"] += left - lost
        parts["startup" if before is None else "recovery"] += rank.startup
        if before is not None:
            parts["recovery"] += max(0, ledger.start_ns - _end(before, now_ns)) / 1e9
        found.computed += rank.seconds["compute"]
        saving, cpu = saving + sum(own.values()), cpu + own["checkpoint_cpu"]
        stepping += rank.wall
        before = ledger
    if saving > found.blocked:
        found.blocked, found.blocked_cpu = saving, cpu
    found.stepping = max(found.stepping, stepping)


def _stalled(ledger: Ledger, rank: RankAccount, now_ns: int) -> float:
    """Seconds beyond a usual step, in steps that took much longer. Time in saves does not count as stalled.

    Only the steps that the ledger still has (the last 512) and the open step are looked at. A rank that was killed, or
    failed, was in a step too.
    """
    steps = [max(0, step.wall_ns - sum(step.causes[at] for at in _SAVING_AT)) / 1e9 for step in ledger.ring]
    if not steps:
        return 0.0
    usual = median(steps)
    if end_of(ledger) != "ended" and ledger.position.phase not in ("checkpoint", "restore"):
        steps.append((_end(ledger, now_ns) - ledger.ring[-1].end_ns) / 1e9)
    beyond = sum(spent - usual for spent in steps if spent > max(HANG_SECONDS, STALL_FACTOR * usual))
    return min(beyond, rank.wall)
