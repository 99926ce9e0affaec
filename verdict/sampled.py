"""Parts of a rank's own time that looks at its training thread show to be something else. Pure functions.

They find it in functions that make batches, log, save, or step environments.

A loop that makes its batches itself, without a loader that hooks know, waits in its own code. The causes of the ledger
cannot say so, because only some moments were looked at. So the report moves the share of the looks: it is a sample,
with the error of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING

from ..ledger.below import BELOW, BLOCKERS, STATES, TESTING
from ..ledger.causes import CAUSE_FAMILY, CAUSE_ROW, WORK_CAUSES
from ..ledger.mounts import Mount
from ..ledger.reader import Ledger
from .gaps import effective, shares_of_looks, weighed
from .gaps import enough as enough_at_device

if TYPE_CHECKING:
    from .accounts import RankAccount, RunAccount

Sampled = dict[tuple[str, str], float]
"""(the cause in which the ledger has it, the cause that it was moved to) -> seconds."""

LEAST_LOOKS = 5
"""With fewer looks below such functions in all ranks, nothing is moved."""
A_TENTH = 0.1
SHARE = 0.02
"""Evidence mentions what was moved if it is at least this share of the window."""
_MOST = 0.5
_TWICE = 2
"""One look may have found an environment at what it seldom does."""
_SURE = 2.0
"""Lateness is moved if it is more than this number of standard errors of the looks."""
_TO: dict[str, dict[str, str]] = {
    "data": {"blocked": "data_read", "host": "data_cpu", "work": "data_cpu"},
    "logging": dict.fromkeys(STATES, "logging"),
    "saving": {"blocked": "checkpoint_write", "host": "checkpoint_cpu", "work": "checkpoint_cpu"},
    "acting": {"work": "rollout"},
    TESTING: {"host": "evaluation", "work": "evaluation"},
}
_IN_ENVIRONMENTS = ("acting", TESTING)
_FROM: dict[str, tuple[str, ...]] = {"blocked": ("host_blocked",), "host": ("host",), "work": WORK_CAUSES}
_OF: dict[str, str] = {"blocked": "blocked_looks", "host": "host_looks", "work": "work_looks"}
_SAID = {
    "data_read": "the loop makes or awaits its batches itself, and is blocked there",
    "data_cpu": "the loop makes its batches itself",
    "logging": CAUSE_ROW["logging"].headline,
    "checkpoint_write": "the loop saves in its own way, and is blocked there",
    "checkpoint_cpu": "the loop saves in its own way",
}
_IN = {
    "data": "making or awaiting batches",
    "logging": "in loggers or callbacks",
    "saving": "saving in its own way",
    "acting": "collecting experience",
    TESTING: "evaluating in environments",
}
_KIND = {cause: kind for kind, causes in _TO.items() for cause in causes.values()}


def enough(ledgers: Iterable[Ledger]) -> frozenset[str]:
    """The kinds of functions below which there were enough looks. Ranks of a run do the same, so their looks add up."""
    looks = Counter(dict.fromkeys(BELOW, 0))
    for ledger in ledgers:
        looks.update({kind: looks_of(ledger, kind) for kind in BELOW})
    return frozenset(kind for kind, count in looks.items() if count >= LEAST_LOOKS)


def looks_of(ledger: Ledger, kind: str) -> int:
    """The looks that show something of a kind."""
    return sum(ledger.words[f"{kind}_looks"][STATES.index(state)] for state in _TO[kind])


def own_looks(ledger: Ledger, moved: Sampled) -> float:
    """The looks at a device without work that found the loop below such functions, of kinds that were not ``moved``."""
    kinds = {_KIND[to] for (of, to), spent in moved.items() if of in WORK_CAUSES and spent}
    return sum(_weighed(ledger, kind, "work") for kind in BELOW if kind not in kinds and "work" in _TO[kind])


def move(seconds: dict[str, float], ledger: Ledger, kinds: frozenset[str], window: float) -> Sampled:
    """Moves the seconds of one attempt, which were in a window of so many. Their sum stays the same. Returns what was
    moved."""
    moved: Sampled = {}
    before = dict(seconds)
    for kind in (kind for kind in BELOW if kind in kinds):
        for state in _TO[kind]:
            looks, sources = _weighed(ledger, kind, state), {cause: before[cause] for cause in _FROM[state]}
            whole = float(ledger.words[_OF[state]][0])
            if kind in _IN_ENVIRONMENTS and ledger.device != "cpu":
                continue  # a device that is idle in an environment waits for its host
            if state == "work" and ledger.device != "cpu":
                share, _, like = shares_of_looks(ledger)
                idle = window * share if enough_at_device(ledger.looks, window, share, like) else 0.0
                whole = whole * sum(sources.values()) / idle if idle else 0.0
            if state == "work" and kind in _IN_ENVIRONMENTS:
                # These looks are at compute, because evaluations and rollouts are told apart at once.
                sources = {"compute": sum(sources.values())}
            for cause, source in sources.items() if 0 < looks <= whole else ():
                spent = max(0.0, min(source * looks / whole, seconds[cause]))
                seconds[cause] -= spent
                for to, share in _targets(ledger, kind, state).items():
                    seconds[to] += spent * share
                    moved[cause, to] = moved.get((cause, to), 0.0) + spent * share
    return moved


def _weighed(ledger: Ledger, kind: str, state: str) -> float:
    """How many of the looks in a state found it in such functions, of looks at equal distances."""
    looks, ns = (ledger.words[f"{kind}_{word}"][STATES.index(state)] for word in ("looks", "looked_ns"))
    return weighed(ledger, looks, ns, state)


def with_moved(ledger: Ledger, blocked: float, moved: Sampled) -> Sequence[Mount]:
    """The mounts of a rank. What looks found there in the loop's own code follows what was moved out.

    ``blocked``: the seconds in which own code and loggers are still blocked. On an accelerator they are not known, so
    the seconds at mounts stand for them.
    """
    on_cpu = ledger.device == "cpu"
    runs = WORK_CAUSES if on_cpu else ()  # there the training thread is not blocked
    gone = {
        kind: sum(spent for (of, to), spent in moved.items() if to == cause and of not in runs)
        for kind, cause in (("data", "data_read"), ("save", "checkpoint_write"))
    }
    if not any(gone.values()):
        return ledger.mounts
    taken = sum(gone.values())
    whole = max(taken + blocked if on_cpu else sum(mount.own_ns for mount in ledger.mounts) / 1e9, taken)
    parts = {kind: spent / whole for kind, spent in gone.items()}
    return [replace(mount, words={**mount.words, **_divided(mount, parts)}) for mount in ledger.mounts]


def _divided(mount: Mount, parts: dict[str, float]) -> dict[str, int]:
    found = {f"{kind}_ns": mount.words[f"{kind}_ns"] + round(mount.own_ns * part) for kind, part in parts.items()}
    return found | {"own_ns": round(mount.own_ns * (1 - sum(parts.values())))}


def _targets(ledger: Ledger, kind: str, state: str) -> dict[str, float]:
    """The causes to which these looks move time, and the share of each. Looks that found the thread blocked in no call
    found it waiting for another one, which computes. On an accelerator all looks together tell how much of it the
    thread was blocked, because its own time is not measured there."""
    to, found = _TO[kind], ledger.words[f"{kind}_looks"]
    blocked, looks = sum(ledger.words[f"{kind}_blocked_on"]), sum(found)
    if ledger.device == "cpu":
        if state != "blocked":
            return {to[state]: 1.0}
        looks = found[STATES.index(state)]
    elif "blocked" not in to or not blocked:
        return {to[state]: 1.0}
    share, runs = min(1.0, blocked / looks), to["work"] if state == "blocked" else to[state]
    if share == 1.0 or runs == to["blocked"]:
        return {to["blocked"]: 1.0}
    return {runs: 1 - share, to["blocked"]: share}


def moved_from(rank: RankAccount, cause: str) -> float:
    return sum(spent for (of, _), spent in rank.moved.items() if of == cause)


def moved_to(rank: RankAccount, *causes: str) -> float:
    return sum(spent for (_, to), spent in rank.moved.items() if to in causes)


def is_sampled(ranks: Iterable[RankAccount], *causes: str) -> bool:
    """Whether looks found most of the time in these causes."""
    every = [*ranks]
    spent = sum(rank.seconds[cause] for rank in every for cause in causes)
    return sum(moved_to(rank, *causes) for rank in every) > _MOST * spent


def reason(ranks: Sequence[RankAccount], cause: str, mounts: str = "") -> str:
    """The reason in a headline on ``cause``; empty if most of it was not sampled. ``mounts``: where they were blocked,
    if that is known."""
    spent = sum(rank.seconds[cause] for rank in ranks)
    if cause not in _SAID or sum(moved_to(rank, cause) for rank in ranks) < _MOST * spent or spent <= 0:
        return ""
    worst = max(ranks, key=lambda rank: moved_to(rank, cause)).newest
    kind = _KIND[cause]
    looks = looks_of(worst, kind) if cause == "logging" else 0  # of the others, only looks that found it blocked count
    on = "" if cause.endswith("_cpu") else mounts or blocked_on(worst, kind, looks)
    function = function_of(worst, kind)
    return f"{_SAID[cause]}{f': {function}' if function else ''}{f', on {on}' if on else ''}"


def sentences(account: RunAccount) -> Iterator[str]:
    """The evidence."""
    for rank in account.ranks:
        who = f"rank {rank.rank}: " if len(account.ranks) > 1 else ""
        for kind in BELOW:
            causes = set(_TO[kind].values())
            spent, ledger = moved_to(rank, *causes), rank.newest
            if spent < SHARE * rank.wall or not (function := function_of(ledger, kind)):
                continue
            looks = looks_of(ledger, kind)
            on = blocked_on(ledger, kind, looks)
            error = f" (± {100 * _error(ledger, kind, spent / rank.wall):.0f})"
            yield (
                f"{who}{100 * spent / rank.wall:.0f} %{error} of the loop is {_IN[kind]}, most of it below {function}"
                f"{f', blocked on {on}' if on else ''} (sampled, {looks} looks)"
            )


def _error(ledger: Ledger, kind: str, share: float) -> float:
    """The standard error of the share of these looks among all (binomial, with one more of each, so that it is not 0
    where all looks agree). On an accelerator, of a number of looks (Poisson), because two kinds of looks add up."""
    if ledger.device != "cpu":
        return share / sqrt(max(1, looks_of(ledger, kind)))
    whole = sum(ledger.words[of][0] for of in _OF.values())
    count, found = effective(ledger, whole), sum(_weighed(ledger, kind, state) for state in _TO[kind])
    count, share = count + 2, (found * count / max(1, whole) + 1) / (count + 2)
    return sqrt(share * (1 - share) / count) if share < 1 else 0.0


def blocked_on(ledger: Ledger, kind: str, looks: int = 0) -> str:
    """What blocked the thread in most of the ``looks``; 0: of those that found it blocked. Empty if nothing did."""
    if "blocked" not in _TO[kind]:
        return ""
    found = dict(zip(BLOCKERS, ledger.words[f"{kind}_blocked_on"], strict=True))
    most = max(found, key=found.__getitem__)
    return most if 2 * found[most] > (looks or sum(found.values())) else ""


def function_of(ledger: Ledger, kind: str) -> str:
    """Such as `` `get_batch` (train.py:116)``; empty if it is not known."""
    where, _, function = ledger.strings[f"{kind}_below"].rpartition(" ")
    return f"`{function}` ({where})" if where and function else ""


def move_lateness(ranks: Sequence[RankAccount]) -> None:
    """Moves what made ranks late to the families that looks found. Only what a rank has more of than another one may
    have made it late."""
    for rank in ranks:
        others = [_between_families(other) for other in ranks if other is not rank]
        more = (rank.gaps or 0.0) - min((other.gaps or 0.0 for other in ranks if other is not rank), default=0.0)
        rank.gaps_unsure = more if 0 < more <= _noise(rank, ("compute", "host")) else 0.0
        extra = {
            pair: more
            for pair, spent in _between_families(rank).items()
            if (more := spent - min((other.get(pair, 0.0) for other in others), default=spent)) > _noise(rank, pair)
        }
        whole = {of: sum(spent for (family, _), spent in extra.items() if family == of) for of, _ in extra}
        late = dict(rank.late)
        for store in (rank.late, *[group.late_own for group in rank.groups.values()]):
            before = dict(store)
            for (of, to), spent in extra.items():
                if late.get(of) and of in before:
                    moved = before[of] * spent / max(late[of], whole[of])
                    store[of] -= moved
                    store[to] = store.get(to, 0.0) + moved


def _noise(rank: RankAccount, pair: tuple[str, str]) -> float:
    """Up to this many seconds, a difference between the shares of looks of two ranks may be chance."""
    return _SURE * (rank.gaps_by.error or 0.0) if pair == ("compute", "host") else 0.0


def _between_families(rank: RankAccount) -> dict[tuple[str, str], float]:
    """(family, the family that it was moved to) -> seconds. Compute in which a device had no work was moved to host."""
    found: dict[tuple[str, str], float] = {("compute", "host"): rank.gaps} if rank.gaps else {}
    for (of, to), spent in rank.moved.items():
        pair = CAUSE_FAMILY[of], CAUSE_FAMILY[to]
        if pair[0] != pair[1]:
            found[pair] = found.get(pair, 0.0) + spent
    return found


def too_few(ranks: Sequence[RankAccount]) -> str:
    """What to add to a verdict of `compute` if looks found something else for a tenth of the time or more, but too
    seldom to count; otherwise empty."""
    ledgers = [rank.newest for rank in ranks if rank.newest.device == "cpu"]  # looks at others stand for the device
    whole = sum(ledger.words[word][0] for ledger in ledgers for word in _OF.values())
    found = {kind: sum(looks_of(ledger, kind) for ledger in ledgers) for kind in BELOW}
    kind = max(found, key=found.__getitem__)
    if not 0 < found[kind] < LEAST_LOOKS or found[kind] < A_TENTH * whole:
        return ""
    return f"{found[kind]} of {whole} looks found it {_IN[kind]}, which are too few to count"


def acts_while_blocked(ranks: Sequence[RankAccount], least: int = LEAST_LOOKS) -> bool:
    """Whether most looks that found the loop's own code blocked, and at least so many, found it below an
    environment."""
    blocked = sum(rank.newest.words["blocked_looks"][0] for rank in ranks)
    acting = sum(rank.newest.words["acting_looks"][STATES.index("blocked")] for rank in ranks)
    return acting >= least and acting >= _MOST * blocked


def acts_elsewhere(ranks: Sequence[RankAccount]) -> bool:
    """Whether most of the looks that found it blocked below an environment found it waiting for another process."""
    found = [dict(zip(BLOCKERS, rank.newest.words["acting_blocked_on"], strict=True)) for rank in ranks]
    away = sum(one["a pipe"] + one["a socket"] for one in found)
    return away >= _TWICE and away > _MOST * sum(sum(one.values()) for one in found)
