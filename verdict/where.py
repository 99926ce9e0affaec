"""Where the loop's own time is spent: the line of the training's code, Python's lock, process groups. Pure functions.

What the watcher samples is evidence beside the causes: no cause has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..ledger.below import OPTIMIZER
from ..ledger.causes import CAUSE_ROW, WORK_CAUSES
from . import background
from .accounts import AT_WORK, Place, RankAccount, RunAccount
from .ends import named
from .sampled import moved_from
from .standing import standing_seconds
from .stuck import stuck_at, waits_for
from .words import FEW_LOOKS, LAUNCHES

SHARE = 0.10
"""A place is named if the kind of time that it is in has at least this share of a rank's window."""
LEAST_LOOKS, MOST = 5, 0.5
"""A place is named if this many looks, and this share of those at that kind of time, found the loop there."""
OFTEN = 0.1
"""Process groups are mentioned if the loop makes at least this many a step."""
LEAST_GROUPS = 10
GROUPS = 0.33
"""A headline names them if to make them took this share of the loop's own time. Their first waits come on top."""
SEEN = 0.2
"""Python's lock is mentioned on an accelerator if at least this share of the looks that found the device without work
found the thread waiting for it."""
AWAKE = 0.5
"""Evidence mentions a training thread that had a CPU for less than this share of what counts as compute or host."""
ENVIRONMENTS = "the device waits for steps of environments"
REWARDS = "the loop is blocked while it makes the rewards of its rollouts"
LOCK = "another thread of this process holds Python's lock"

OUTSIDE = "outside torch's modules, backward passes and optimizers"
INSIDE = "in Python code of the model"
IDLE = "the GPU has no work while the loop is in"
ON_CPU = "the GPU has no work while the optimizer computes on the CPU"
_CAUSE = {"host": "host", "blocked": "host_blocked"}
_BESIDE = 0.25
"""A headline of compute names a place beside the model if at least this share of the time is there."""


def spots(
    account: RunAccount, ranks: Sequence[RankAccount] = (), kinds: Collection[str] = tuple(_CAUSE)
) -> list[dict[str, object]]:
    """The places in which ``ranks`` (without any: all) spend much of their own time, worst first. ``share``: of their
    windows. The places of `blocked` are not named where Python's lock is the reason: the loop waits anywhere then.

    ``kinds``: with ``outside`` instead, those in which CPU ranks work, but not in the model."""
    found: dict[object, list[tuple[RankAccount, Place, float, int]]] = {}
    chosen = list(ranks) or account.ranks
    for rank in chosen:
        for place, spent, there, at, looks in _places(rank, kinds):
            if spent >= SHARE * rank.wall and at >= LEAST_LOOKS:
                found.setdefault(_same(place), []).append((rank, place, there, looks))
    window = sum(rank.wall for rank in chosen)
    spotted: list[dict[str, object]] = [
        {
            "ranks": sorted({rank.rank for rank, *_ in entry}),
            **max(entry, key=lambda one: one[2])[1]._asdict(),
            "share": sum(spent for _, _, spent, _ in entry) / window,
            "samples": sum(looks for *_, looks in entry),
        }
        for entry in found.values()
    ]
    return sorted(spotted, key=lambda spot: -float(str(spot["share"])))


def _places(rank: RankAccount, kinds: Collection[str]) -> Iterator[tuple[Place, float, float, int, int]]:
    """The places that have most looks of their kinds: the place, the seconds for which its kind stands, the part of
    them there, the looks there, and those that were taken. Kinds of work that are in the same function are one."""
    found: dict[object, list[tuple[Place, float, float, int, int]]] = {}
    for kind, (place, at, looks) in rank.places.items():
        if kind not in kinds or not at or at < MOST * looks or (kind == "blocked" and is_locked([rank])):
            continue
        spent = _spent(rank, kind, looks)
        one = place, spent, spent * at / looks, at, rank.place_looks.get(kind, looks)
        found.setdefault(_same(place) if kind in AT_WORK else kind, []).append(one)
    for same in found.values():
        places, spent, there, at, looks = zip(*same, strict=True)
        yield places[at.index(max(at))], sum(spent), sum(there), sum(at), sum(looks)


def _same(place: Place) -> tuple[str, str, bool]:
    """The same for places that are one: an optimizer is another one than the function that calls it."""
    return place.file, place.function, place.library == OPTIMIZER


def _spent(rank: RankAccount, kind: str, looks: int) -> float:
    """The seconds that these looks of a kind stand for."""
    if kind in AT_WORK:
        if _has_device(rank):
            return _idle(rank, looks)
        work = sum(rank.seconds[cause] + moved_from(rank, cause) for cause in WORK_CAUSES)
        return work * looks / max(rank.work_looks, looks)
    cause = _CAUSE[kind]
    return rank.seconds[cause] + moved_from(rank, cause) - (rank.gaps or 0.0 if kind == "host" else 0.0)


def _idle(rank: RankAccount, looks: float) -> float:
    """The seconds of compute in which a device had no work while such looks found the loop in its own code."""
    return (rank.gaps or 0.0) * min(1.0, looks / rank.work_looks) if rank.work_looks else 0.0


def own_gaps(rank: RankAccount) -> float:
    """The seconds of compute in which a device had no work, and the loop launched nothing."""
    looks = sum(rank.places[kind][2] for kind in ("outside", "inside") if kind in rank.places)
    return _idle(rank, looks + rank.own_looks)


def in_gaps(account: RunAccount, ranks: Sequence[RankAccount]) -> str:
    """Where the loop is in most of the time in which devices had no work in compute; empty if that is in no one place,
    or in the model's launches."""
    idle = sum(rank.gaps or 0.0 for rank in ranks)
    if is_locked_in_gaps(ranks):
        return _locked(max(ranks, key=lock_gaps))
    if said := own_place(account, ranks):
        return said
    if (spot := in_most_gaps(account, ranks, "launching")) is not None:
        return f"{LAUNCHES}, in {launching_text(spot)}"
    if (spot := in_turns(account, ranks)) is not None:
        return f"{IDLE} {text_of({**spot, 'library': ''})}"
    if idle and sum(map(own_gaps, ranks)) >= MOST * idle:
        seen = sum(rank.places[kind][2] for rank in ranks for kind in AT_WORK[:2] if kind in rank.places)
        return f"{IDLE} its own code, {'and few looks say where' if seen < 2 * LEAST_LOOKS else 'in several places'}"
    return FEW_LOOKS if few_looks(ranks) else ""


def is_locked_in_gaps(ranks: Sequence[RankAccount]) -> bool:
    """Whether the loop waits for Python's lock in most of the time in which devices had no work in compute."""
    return sum(map(lock_gaps, ranks)) >= MOST * sum(rank.gaps or 0.0 for rank in ranks) > 0


def own_place(account: RunAccount, ranks: Sequence[RankAccount]) -> str:
    """The same, if the loop launches nothing there."""
    for kind, said in (("outside", ""), ("inside", f", {INSIDE}")):
        if (spot := in_most_gaps(account, ranks, kind)) is not None:
            if spot["library"] == OPTIMIZER:
                return f"{ON_CPU}, at {text_of({**spot, 'library': ''})}"
            return f"{IDLE} {text_of(spot)}{said}"
    return ""


def in_most_gaps(account: RunAccount, ranks: Sequence[RankAccount], *kinds: str) -> dict[str, object] | None:
    """The place of these kinds of work that has most of the time in which devices had no work."""
    idle, wall = sum(rank.gaps or 0.0 for rank in ranks), sum(rank.wall for rank in ranks)
    spot = next(iter(spots(account, ranks, kinds)), None)
    return spot if spot is not None and float(str(spot["share"])) * wall >= MOST * idle > 0 else None


def in_turns(account: RunAccount, ranks: Sequence[RankAccount]) -> dict[str, object] | None:
    """The same, if it is a function that launches and does something else in turns, and neither has most of it."""
    if any(in_most_gaps(account, ranks, kind) is not None for kind in ("outside", "launching")):
        return None
    return in_most_gaps(account, ranks, "outside", "launching")


def few_looks(ranks: Sequence[RankAccount]) -> bool:
    """Whether looks found devices without work too seldom to say what the loop did then. With none, nothing looks at
    the training thread."""
    return 0 < sum(rank.work_looks for rank in ranks) < LEAST_LOOKS


def beside_the_model(account: RunAccount, ranks: Sequence[RankAccount] = ()) -> str:
    """What to say of compute of these ranks (without any: of all) if much of it is in one place of the loop's own code
    beside the model, or in Python code of the model; otherwise empty."""
    for kind, said in (("outside", OUTSIDE), ("inside", INSIDE)):
        if spot := spot_beside(account, ranks, kind):
            least = "at least " if kind == "inside" else ""  # looks at shorter stretches of Python code find torch
            return f"{least}{100 * float(str(spot['share'])):.0f} % of the time is in {text_of(spot)}, {said}"
    return ""


def spot_beside(
    account: RunAccount, ranks: Sequence[RankAccount] = (), kind: str = "outside"
) -> dict[str, object] | None:
    """That place. Optimizers are not beside the model."""
    found = [spot for spot in spots(account, ranks, (kind,)) if spot["library"] != OPTIMIZER]
    return found[0] if found and float(str(found[0]["share"])) >= _BESIDE else None


def launching_text(spot: dict[str, object]) -> str:
    """The same for a place that launches operations, or that calls an optimizer which does."""
    place = text_of({**spot, "library": ""})
    return f"the optimizer, at {place}" if spot["library"] == OPTIMIZER else place


def text_of(spot: dict[str, object]) -> str:
    """Such as `` `log_metrics` (train.py:212)``."""
    where = f"{spot['file']}:{spot['line']}"
    calls = f", which calls {spot['library']}" if spot["library"] else ""
    function = str(spot["function"])
    return f"{where}{calls}" if function == "<module>" else f"`{function}` ({where}){calls}"


def is_locked(ranks: Sequence[RankAccount]) -> bool:
    """Whether most of the blocked time was spent in waiting for Python's lock."""
    blocked = sum(rank.seconds["host_blocked"] + moved_from(rank, "host_blocked") for rank in ranks)
    return blocked > 0 and sum(map(lock_seconds, ranks)) >= MOST * blocked


def _locked(rank: RankAccount) -> str:
    return f"{LOCK} (the thread {rank.lock_thread})" if rank.lock_thread else LOCK


def lock_seconds(rank: RankAccount) -> float:
    """How long the loop waited for Python's lock at least. Looks are too rare for a thread that works in bursts, but if
    steps beside it surely take longer because of the lock, at least half of what they lose is due to that."""
    if not (rank.lock and rank.lock_looks):  # there was none in this part of the run, or no look has found a thread
        return rank.lock
    newest = rank.newest
    lost = lock_cost(background.costs([newest]), rank.lock_thread)
    return max(rank.lock, lost / 2 * min(rank.wall, (newest.until_ns - newest.window_ns) / 1e9))


def lock_cost(costs: Sequence[background.Cost], thread: str) -> float:
    """The share of a rank's time that it surely loses to Python's lock beside its saves or beside this thread,
    whichever is larger."""
    known = (("save", ""), ("thread", thread))
    return max(
        [one.share for one in costs if one.sure and one.part == "lock" and (one.kind, one.name) in known], default=0.0
    )


def makes_groups(ranks: Sequence[RankAccount]) -> bool:
    """Whether the loop goes on making process groups."""
    return any(rank.new_groups >= max(LEAST_GROUPS, OFTEN * rank.steps) for rank in ranks)


def is_making_groups(ranks: Sequence[RankAccount]) -> bool:
    """Whether to make process groups is a good part of the loop's own time."""
    return makes_groups(ranks) and sum(rank.new_group for rank in ranks) >= GROUPS * _own_seconds(ranks)


def _own_seconds(ranks: Sequence[RankAccount]) -> float:
    return sum(rank.seconds["host"] + rank.seconds["host_blocked"] for rank in ranks)


def in_rewards(ranks: Sequence[RankAccount]) -> bool:
    """Whether rewards may have most of the time in which the loop was blocked."""
    blocked = sum(rank.seconds["host_blocked"] for rank in ranks)
    return 0 < MOST * blocked <= sum(rank.rollout_parts.get("reward", 0.0) for rank in ranks)


def in_environments(ranks: Sequence[RankAccount]) -> bool:
    """Whether most of the time in which devices waited for the loop's own code was in steps of environments."""
    host = sum(rank.seconds["host"] for rank in ranks if _has_device(rank))
    return 0 < MOST * host <= sum(rank.rollout_parts["environment"] for rank in ranks if _has_device(rank))


def is_blocked(ranks: Sequence[RankAccount]) -> bool:
    """Whether most looks that found a device without work found the training thread blocked."""
    blocked, looks = (
        sum(rank.places[kind][2] for rank in ranks for kind in kinds if kind in rank.places and _has_device(rank))
        for kinds in (("blocked",), ("host", "outside", "inside"))
    )
    return looks > 0 and 2 * blocked > looks


def _has_device(rank: RankAccount) -> bool:
    return rank.newest.device != "cpu"


def reason(account: RunAccount, ranks: Sequence[RankAccount], otherwise: str) -> str:
    """The part of a headline on time in the loop's own code. ``otherwise``: what to say if nothing more is known."""
    own = _own_seconds(ranks)
    if is_making_groups(ranks):
        return groups_left(ranks) or f"the loop makes {_rate(ranks)}"
    if is_locked(ranks) and sum(map(lock_seconds, ranks)) >= MOST * own:
        return _locked(max(ranks, key=lambda rank: rank.lock))
    if is_blocked(ranks):
        otherwise = CAUSE_ROW["host_blocked"].headline
    if in_environments(ranks):
        otherwise = ENVIRONMENTS
    # A step that does not end may be at a line that few looks have found.
    stands = [rank.newest for rank in ranks if _stands(rank, account.now_ns, own)][:1]
    for ledger in stands:
        if waits_for(ledger) and (at := stuck_at(ledger)):
            return f"{otherwise}: {at}"
    for spot in spots(account, ranks)[:1]:
        return f"{otherwise}: {text_of(spot)}"
    for ledger in stands:
        return f"{otherwise}: {line}" if (line := stuck_at(ledger)) else otherwise
    return REWARDS if in_rewards(ranks) else otherwise


def _stands(rank: RankAccount, now_ns: int, own: float) -> bool:
    """Whether half of these seconds or more are in a step that does not end, in the loop's own code."""
    in_own_code = rank.newest.position.phase in ("host", "compute")
    return in_own_code and 2 * standing_seconds(rank.newest, now_ns) >= own > 0


def sentences(account: RunAccount) -> Iterator[str]:
    """The evidence."""
    for kinds, least, said in (
        (tuple(_CAUSE), "", ""),
        (("outside", "launching"), "", f", {OUTSIDE}"),
        (("inside",), "at least ", f", {INSIDE}"),
    ):
        for spot in spots(account, kinds=kinds):
            theirs = [rank for rank in account.ranks if rank.rank in spot["ranks"]]  # type: ignore[operator]
            who = f"{_who(_numbers(theirs))}: " if len(account.ranks) > 1 else ""
            share = float(str(spot["share"])) * account.rank_seconds / max(1e-9, sum(rank.wall for rank in theirs))
            at_least, rest = least, said
            if kinds != tuple(_CAUSE) and _has_device(theirs[0]):
                at_least, rest = "", f"{said if kinds == ('inside',) else ''}, while the GPU has no work"
            yield (
                f"{who}{at_least}{100 * share:.0f} % of the loop is in {text_of(spot)}{rest} "
                f"(sampled, {spot['samples']} looks)"
            )
    yield from _lock(account)
    yield from _groups(account)


def unknown(account: RunAccount) -> str:
    """What to add to a verdict of `compute` if the training threads hardly had a CPU in it; otherwise empty."""
    ranks = [rank for rank in account.ranks if _sleeps(rank)]
    if not ranks:
        return ""
    awake, computed = sum(rank.awake for rank in ranks), sum(_computed(rank) for rank in ranks)
    who = "the training thread" if len(account.ranks) == 1 else f"the training thread of {_who(_numbers(ranks))}"
    return (
        f"{who} was on a CPU in only {100 * awake / computed:.0f} % of the time that counts as compute or host: other "
        "threads of the process worked in the rest, or it is not known what they did"
    )


def _sleeps(rank: RankAccount) -> bool:
    known = rank.newest.device == "cpu" and rank.awake > 0
    return known and _computed(rank) >= SHARE * rank.wall and rank.awake < AWAKE * _computed(rank)


def _computed(rank: RankAccount) -> float:
    return sum(rank.seconds[cause] for cause in WORK_CAUSES) + rank.seconds["host"]


def _lock(account: RunAccount) -> Iterator[str]:
    for rank in account.ranks:
        thread = f" (the thread {rank.lock_thread})" if rank.lock_thread else ""
        if rank.lock >= SHARE / 2 * rank.wall > 0:
            yield (
                f"rank {rank.rank}: in {rank.lock:.1f} s of its blocked time another thread computed and held Python's "
                f"lock{thread}"
            )
        elif lock_gaps(rank):
            yield (
                f"rank {rank.rank}: in {rank.lock_looks} of {rank.work_looks} looks that found the GPU without work, "
                f"the training thread waited for Python's lock, which another thread held{thread}"
            )


def lock_gaps(rank: RankAccount) -> float:
    """The seconds without work in compute in which the training thread waits for Python's lock, by looks; 0 if it was
    seen to do so too seldom."""
    seen = (rank.gaps or 0.0) >= SHARE * rank.wall and rank.lock_looks >= max(LEAST_LOOKS, SEEN * rank.work_looks)
    return _idle(rank, rank.lock_looks) if seen else 0.0


def _groups(account: RunAccount) -> Iterator[str]:
    ranks = [rank for rank in account.ranks if makes_groups([rank])]
    if not ranks:
        return
    worst = max(ranks, key=lambda rank: rank.threads)
    left = f": {worst.threads} threads and {worst.open_files} open files" if worst.threads else ""
    fate = "made and forgotten" if worst.threads >= worst.new_groups else "made"
    spent, who = sum(rank.new_group for rank in ranks), "" if len(account.ranks) == 1 else f"{_who(_numbers(ranks))}: "
    yield f"{who}{_rate(ranks)} is {fate} ({spent:.1f} s){left}"


def groups_left(ranks: Sequence[RankAccount]) -> str:
    """What the loop makes, and the threads that are left, where it goes on making process groups: each starts some.
    Empty if none are left."""
    threads = max(rank.threads for rank in ranks)
    many = makes_groups(ranks) and threads >= max(rank.new_groups for rank in ranks)
    return f"the loop makes {_rate(ranks)}, and {threads} threads are left" if many else ""


def _rate(ranks: Sequence[RankAccount]) -> str:
    rate = max(rank.new_groups / max(1, rank.steps) for rank in ranks)
    if rate >= 1.5:
        return f"{rate:.0f} process groups a step"
    return "a process group in each step" if rate > 0.75 else f"a process group in every {1 / rate:.0f} steps"


def _numbers(ranks: Sequence[RankAccount]) -> list[int]:
    return [rank.rank for rank in ranks]


def _who(numbers: list[int]) -> str:
    return named(numbers)
