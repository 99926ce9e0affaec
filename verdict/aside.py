"""What a loop does beside training: its evaluations and its rollouts, how often, and of what they consist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from .accounts import RankAccount, RunAccount
from .sampled import moved_to
from .words import time_of

SHARE = 0.02
"""A report mentions them from this share of the loop on."""
UNKNOWN_ROLLOUT = "work without gradients (a rollout, a generation, a teacher or a reference)"


@dataclass(frozen=True, slots=True)
class Aside:
    """The evaluations, or the rollouts, of the rank that spends most time in them."""

    cause: str
    """`evaluation` or `rollout`."""
    rank: int
    seconds: float
    share: float
    """Part of the rank's time since its first step, from 0 to 1."""
    count: int
    """In how many steps there was one."""
    every: float | None
    """Steps from one to the next; None if there was none."""
    waits: float = 0.0
    """The waits for batches of evaluations, as a share of the rank's time. They are not in ``share``."""
    idle: float = 0.0
    """The time of evaluations in which the loop's own code is blocked, or keeps the device idle, as such a share. It is
    not in ``share``."""
    batches: int = 0
    """Batches that were evaluated; 0 if they are not known: fewer than evaluations come from something else."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What rollouts were in, as shares of the rank's time, by the host's clock. The rest is not known."""

    @property
    def sentence(self) -> str:
        """`evaluation 31 % of the loop, every 120 steps; 150 batches of 40 ms`."""
        known = [(part, share) for part, share in self.parts.items() if share >= SHARE / 2]
        name = self.cause if known or self.cause != "rollout" else UNKNOWN_ROLLOUT
        said = f"{name} {100 * self.share:.0f} % of the loop"
        if self.every is not None:
            said += ", in each step" if self.every < 1.5 else f", every {self.every:.0f} steps"
        if self.batches:
            said += (
                f"; {self.batches} batch{'' if self.batches == 1 else 'es'} of {time_of(self.seconds / self.batches)}"
            )
        if self.waits >= SHARE / 2:
            said += f"; waits for its batches take {100 * self.waits:.0f} % more"
        if self.idle >= SHARE / 2:
            said += f"; {100 * self.idle:.0f} % more is idle time in evaluations"
        if known:
            said += ": " + ", ".join(f"{part} {100 * share:.0f} %" for part, share in known)
        return said

    @property
    def entry(self) -> dict[str, object]:
        """As JSON."""
        return {**asdict(self), "sentence": self.sentence if self.share + self.waits + self.idle >= SHARE else ""}


def asides(account: RunAccount) -> list[Aside]:
    """What is known of evaluations and rollouts, if there are any. The largest share comes first."""
    found = [_of(account, cause) for cause in ("evaluation", "rollout")]
    return sorted((one for one in found if one is not None), key=lambda one: -one.share)


def _of(account: RunAccount, cause: str) -> Aside | None:
    def spent(rank: RankAccount) -> float:
        """Rewards may be host time. So what the parts add up to may be longer than the cause."""
        return max(rank.seconds[cause], sum(rank.rollout_parts.values()) if cause == "rollout" else 0.0)

    rank = max(account.ranks, key=spent, default=None)
    evaluates = cause == "evaluation"
    if rank is None or rank.wall <= 0 or not (spent(rank) or (evaluates and _idle(rank))) > 0:
        return None
    count = rank.evaluations if evaluates else rank.rollouts
    if 2 * moved_to(rank, cause) > rank.seconds[cause]:
        count = 0  # looks do not count them
    return Aside(
        cause,
        rank.rank,
        spent(rank),
        spent(rank) / rank.wall,
        count,
        _every(rank, count, rank.evaluation_gaps if evaluates else ()),
        rank.eval_data / rank.wall if evaluates else 0.0,
        _idle(rank) / rank.wall if evaluates else 0.0,
        rank.eval_batches if evaluates and rank.eval_batches >= count else 0,
        {} if evaluates else {part: seconds / rank.wall for part, seconds in rank.rollout_parts.items() if seconds},
    )


def _idle(rank: RankAccount) -> float:
    """The seconds of `host` and `host_blocked` in evaluations."""
    idle = rank.eval_idle + rank.gaps_in.get("evaluation", 0.0)
    return min(idle, rank.seconds["host"] + rank.seconds["host_blocked"])


def _every(rank: RankAccount, count: int, gaps: Sequence[int]) -> float | None:
    """Steps from one to the next. For evaluations it is the middle one of the last gaps: one more evaluation at the end
    of the training does not change it, nor one before the first step. Otherwise it is the mean."""
    if not count or not rank.steps:
        return None
    known = sorted(gap for gap in gaps if gap > 0)
    return float(known[len(known) // 2]) if known else rank.steps / count
