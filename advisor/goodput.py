"""How much of a run was progress, over all its attempts. Pure functions.

Each second of each rank, from the start of its first process until now (or until its last sign of life), is in exactly
one part:

- `productive`: new steps, without what follows
- `evaluation`: evaluations in new steps
- `rollout`: rollouts in new steps
- `unused`: new steps of ranks that train on the CPU beside GPUs that the run was given
- `saving`: blocked in saves
- `lost`: steps that an earlier attempt had finished
- `branched`: steps that a branch from an older checkpoint has left
- `stalled`: the time beyond a usual step, in steps that took much longer
- `startup`: until the first step of the first attempt
- `shutdown`: after the last step of a process
- `between`: between two trainings in one process
- `interactive`: a notebook waited for its user between two cells
- `recovery`: from the last sign of life of an attempt until the first step of the next one

ETTR, the effective training time ratio, is productive / all (arXiv 2410.21680). Rollouts are productive there: the
steps learn from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from ..ledger.causes import CHECKPOINT_KINDS, OUTSIDE_CAUSES
from ..ledger.directory import Run, age, drop_duplicates, run_of
from ..ledger.layout import BEGINNINGS, RETURNED
from ..ledger.reader import Ledger
from ..verdict import out_of_memory
from ..verdict.accounts import RankAccount, account
from ..verdict.devices import reason
from ..verdict.ends import end_of, may_have_finished
from ..verdict.failures import sentence
from ..verdict.recent import SAVING
from ..verdict.standing import aside_seconds, beyond, end_ns, open_step_seconds
from .intervals import Rhythm, rhythm_of
from .lines import BRANCH, Stretch, branched_off

PARTS: tuple[str, ...] = (
    *("productive", "evaluation", "rollout", "unused", "saving", "lost", "branched", "stalled", "startup"),
    *OUTSIDE_CAUSES,
    "recovery",
)
_SAVE = CHECKPOINT_KINDS.index("save")
RETURN = BEGINNINGS[RETURNED]
FIRST, AFTER_PREEMPTION, AFTER_CRASH, AFTER_END, AFTER_UNKNOWN = "first", "preemption", "crash", "continued", "restart"
"""Why an attempt began, where nobody has chosen an older checkpoint: RETURN and BRANCH say that somebody has."""


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
    failure: str = ""
    """How the first of these ended, if that is known."""
    preempted: bool = False
    """Whether it is known that somebody has asked it to end: by SIGTERM, or by starting the job again."""
    base: int = 0
    """The step from which it goes on."""
    restored_step: int | None = None
    """The step of the checkpoint that it has restored; None if it has not, or if that is not known."""
    restored_from: int = -1
    """The attempt that has saved that checkpoint; -1 if it is not known."""
    beginning: str = ""
    """One of BEGINNINGS."""
    requeues: int = 0
    """How often the scheduler had started the job again."""
    began: str = FIRST
    """FIRST, one of AFTER_*, RETURN or BRANCH."""
    branched: int = 0
    """How many of its steps a later branch has left."""
    world_size: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def stretch(self) -> Stretch:
        return Stretch(self.number, self.base, self.steps, self.repeated, self.restored_from, self.beginning)


def relate(attempts: Sequence[Attempt]) -> None:
    """Sets what follows from the other attempts: `preempted`, `began` and `branched`. They must be in order."""
    for place, one in enumerate(attempts):
        _learn_base(attempts[:place], one)
    for before, after in pairwise(attempts):
        before.preempted |= after.requeues > before.requeues and not before.failed
        after.began = after.beginning if after.beginning in (RETURN, BRANCH) else _after(before)
    for one, steps in zip(attempts, branched_off([one.stretch() for one in attempts]), strict=True):
        one.branched = steps


def _learn_base(earlier: Sequence[Attempt], one: Attempt) -> None:
    """If the ranks that are known here have learnt from another node which step they have restored, their ledgers do
    not know the base."""
    if one.restored_step is None or one.base:
        return
    one.base = one.restored_step
    if one.beginning != BRANCH:
        branch = max((place for place, before in enumerate(earlier) if before.beginning == BRANCH), default=0)
        reached = max((before.base + before.steps for before in earlier[branch:]), default=0)
        one.repeated = max(0, min(reached - one.base, one.steps))


def _after(before: Attempt) -> str:
    if before.preempted:
        return AFTER_PREEMPTION
    return {True: AFTER_END, False: AFTER_CRASH, None: AFTER_UNKNOWN}[before.clean]


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
    behind: bool = False
    """Whether another thread or process was seen to save. Prometheus does not tell."""
    whole: bool = True
    """Whether it is about all of the run, and not about a stretch of time."""

    @property
    def all(self) -> float:
        return sum(self.seconds.values())

    @property
    def ettr(self) -> float:
        return (self.seconds["productive"] + self.seconds["rollout"]) / self.all if self.all else 0.0

    @property
    def steps(self) -> int:
        return sum(attempt.steps for attempt in self.attempts)

    @property
    def saves(self) -> int:
        return sum(attempt.saves for attempt in self.attempts)

    @property
    def failures(self) -> int:
        """The number of attempts in which ranks failed or are known to have been killed. An attempt of which it is not
        known how it ended counts if another attempt followed it. So do those that were not seen, if no scheduler has
        started the job again: it may have done so before they began."""
        return self.unseen_failures + len(self._failed)

    @property
    def unseen_failures(self) -> int:
        """Those of them that were not seen."""
        pairs = (pair for pair in self._pairs if pair[1].requeues <= (pair[0].requeues if pair[0] else 0))
        return sum(len(_between(*pair)) for pair in pairs)

    @property
    def interruptions(self) -> int:
        """The number of failures in the time that `watched` has: of attempts that were seen, and have made a step.
        Without one, a save would have kept nothing."""
        return sum(attempt.steps > 0 for attempt in self._failed)

    @property
    def _failed(self) -> list[Attempt]:
        last = len(self.attempts) - 1
        return [
            attempt
            for number, attempt in enumerate(self.attempts)
            if (not attempt.clean if number < last else attempt.clean is False and not attempt.alive)
        ]

    @property
    def unseen(self) -> list[int]:
        """The numbers of attempts that a launcher has started, and of which nothing was seen."""
        return [number for pair in self._pairs for number in _between(*pair)]

    @property
    def _pairs(self) -> list[tuple[Attempt | None, Attempt]]:
        """Each attempt, with the one before it that was seen."""
        pairs = list(zip([None, *self.attempts], self.attempts, strict=False))
        return pairs if self.whole else pairs[1:]

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


def _between(before: Attempt | None, after: Attempt) -> range:
    """The numbers between those of two attempts, or before the first one. Without a launcher that counts restarts,
    there are none."""
    return range(before.number + 1 if before is not None else 0, after.number)


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
    found.behind = any(work.kind == "save" for ledger in believed for work in ledger.backgrounds)
    for number in sorted(by_attempt):
        found.attempts.append(_attempt(number, by_attempt[number], now_ns))
    relate(found.attempts)
    aside: dict[tuple[int, int], float] = {}
    for ledger in believed:
        for step in ledger.ring:
            key = ledger.attempt, step.number
            aside[key] = max(aside.get(key, 0.0), aside_seconds(step))
    for attempts in by_rank.values():
        _add_rank(found, run, attempts, now_ns, aside)
    return found


def _attempt(number: int, ledgers: Sequence[Ledger], now_ns: int) -> Attempt:
    # Ranks of another node than the rank that saves do not know what they have restored.
    knows = max(ledgers, key=lambda ledger: (ledger.beginning, ledger.base_step))
    return Attempt(
        number=number,
        ranks=len(ledgers),
        alive=any(ledger.alive for ledger in ledgers),
        clean=_clean(ledgers),
        steps=max(ledger.steps for ledger in ledgers),
        repeated=_repeated(knows) if knows.beginning else max(map(_repeated, ledgers)),
        saves=max(ledger.words["checkpoints"][_SAVE] for ledger in ledgers),
        start=min(ledger.start_ns for ledger in ledgers) / 1e9,
        end=max(end_ns(ledger, now_ns) for ledger in ledgers) / 1e9,
        startup=max((ledger.window_ns or end_ns(ledger, now_ns)) - ledger.start_ns for ledger in ledgers) / 1e9,
        failed=any(end_of(ledger) == "failed" for ledger in ledgers if not ledger.alive),
        failure=_failure(ledgers),
        # A launcher stops the other ranks of one that has crashed.
        preempted=all(ledger.stopped_by for ledger in ledgers) and not any(ledger.alive for ledger in ledgers),
        base=knows.base_step if knows.beginning else max(ledger.base_step for ledger in ledgers),
        restored_step=knows.restored_step - 1 if knows.restored_step else None,
        restored_from=knows.restored_attempt - 1,
        beginning=BEGINNINGS[knows.beginning],
        requeues=max(ledger.requeues for ledger in ledgers),
        world_size=max(ledger.world_size for ledger in ledgers),
    )


def _failure(ledgers: Sequence[Ledger]) -> str:
    """How the first of these ranks ended, as far as that is known: with an error, or killed because memory ran out."""
    over = sorted((one for one in ledgers if not one.alive), key=lambda ledger: ledger.last_sign_ns)
    killed = [one for one in over if end_of(one) == "killed" and out_of_memory.evidence(one)]
    # Some are killed after an error, before they exit.
    failed = [one for one in over if one not in killed and (end_of(one) == "failed" or one.strings["failure"])]
    if failed:
        killed = [one for one in killed if _killed_before(one, failed[0], len(ledgers))]
    if killed:
        first = min(killed, key=lambda ledger: out_of_memory.EVIDENCE.index(out_of_memory.evidence(ledger)))
        return f"rank {first.rank} was killed{out_of_memory.how(first)}"
    first = next((one for one in failed if end_of(one) == "failed" and sentence(one)), None)
    return f"rank {first.rank} ended with an error{sentence(first)}" if first is not None else ""


def _killed_before(killed: Ledger, failed: Ledger, ranks: int) -> bool:
    """Whether memory ran out before the first error. A launcher kills the other ranks after it, whatever they use."""
    if killed.last_sign_ns > failed.last_sign_ns:
        return False
    gone = failed.alive_at_end < ranks  # 0: not known
    return gone and {"log": True, "count": failed.alive_at_end > 0}.get(out_of_memory.evidence(killed), False)


def _clean(ledgers: Sequence[Ledger]) -> bool | None:
    ended = all(end_of(ledger) == "ended" for ledger in ledgers)
    return None if not ended and may_have_finished(ledgers) else ended


def _repeated(ledger: Ledger) -> int:
    """The number of steps of this attempt that an earlier attempt had finished."""
    return max(0, min(ledger.recompute_until, ledger.base_step + ledger.steps) - ledger.base_step)


def _add_rank(
    found: Goodput, run: Run, attempts: Sequence[Ledger], now_ns: int, aside: Mapping[tuple[int, int], float]
) -> None:
    saving = cpu = stepping = 0.0
    before: Ledger | None = None
    whole = {attempt.number: attempt for attempt in found.attempts}
    for ledger in attempts:
        (rank,) = account(run, [ledger], now_ns).ranks
        own = {cause: rank.seconds[cause] for cause in SAVING}
        stalled = max(_stalled(ledger, rank, now_ns, aside), min(rank.wall, rank.seconds["suspended"]))
        left = rank.wall - sum(own.values()) - stalled
        of, steps = whole[ledger.attempt], max(1, ledger.steps)
        lost = left * min(of.repeated, ledger.steps) / steps
        branched = min(left * of.branched / steps, left - lost)
        parts = found.seconds
        parts["saving"] += sum(own.values())
        parts["stalled"] += stalled
        parts["lost"] += lost
        parts["branched"] += branched
        new = left - lost - branched
        if reason(ledger):
            parts["unused"] += new
        else:
            found.computed += add_new(parts, rank.seconds, left, new)
        parts["startup" if before is None else "recovery"] += rank.startup
        for cause, spent in rank.outside.items():
            parts[cause] += spent
        if before is not None:
            parts["recovery"] += max(0, ledger.start_ns - end_ns(before, now_ns)) / 1e9
        saving, cpu = saving + sum(own.values()), cpu + own["checkpoint_cpu"]
        stepping += rank.wall
        before = ledger
    if saving > found.blocked:
        found.blocked, found.blocked_cpu = saving, cpu
    found.stepping = max(found.stepping, stepping)


def add_new(parts: dict[str, float], causes: Mapping[str, float], left: float, new: float) -> float:
    """Adds ``new`` seconds of new steps, out of ``left`` of new and other steps. Both have the same share of
    evaluations and rollouts, and of compute. Returns the compute in the productive seconds, at most all of these:
    ``causes`` also have that of stalled steps."""
    aside = {cause: causes.get(cause, 0.0) for cause in ("evaluation", "rollout")}
    share = new / left if left > 0 else 0.0
    for cause, seconds in aside.items():
        parts[cause] += share * min(seconds, left)
    productive = max(0.0, new - share * sum(aside.values()))
    parts["productive"] += productive
    return min(productive, share * causes.get("compute", 0.0))


def _stalled(ledger: Ledger, rank: RankAccount, now_ns: int, aside: Mapping[tuple[int, int], float]) -> float:
    """Seconds beyond a usual step, in steps that took much longer. Time in saves, evaluations and rollouts does not
    count as stalled. A wait for the rank that does this alone does not count either.

    ``aside``: (attempt, number of a step) -> the most seconds that a rank has spent so in it.

    Only the steps that the ledger still has (the last 512) and the open step are looked at. A rank that was killed, has
    failed or was interrupted was in a step too.
    """
    steps = [max(0.0, step.wall_ns / 1e9 - aside.get((ledger.attempt, step.number), 0.0)) for step in ledger.ring]
    if not steps:
        return 0.0
    usual = median(steps)
    return min(beyond([*steps, open_step_seconds(ledger, end_ns(ledger, now_ns))], usual), rank.wall)
