"""CPU time that ranks did not get: a hypervisor took it, or other processes of the node used it. Pure functions.

The kernel counts stolen time per CPU and not per thread, so no cause can have it. A rank whose CPU was stolen seems to
compute longer, and if this happens to one rank after the other, they take turns at being late. So a shortage is
evidence. It is named as the reason why ranks take turns only if it is large enough to explain that: a second that one
rank loses makes each of the others wait for at most a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..ledger.causes import CAUSE_ROW
from .accounts import RankAccount, RunAccount
from .ends import counted, every_rank
from .given import THROTTLED, Cpus, Given

STOLEN_SHARE = 0.05
"""Evidence mentions a node if at least this share of the CPU time that its ranks asked for was stolen."""
QUEUED_SHARE = 0.10
"""Evidence mentions ranks whose training threads queued for a CPU for at least this share of their time."""
OTHERS = 0.25
"""Other programs are the reason if they use at least this part of the CPUs."""
EXPLAINED = 0.75
"""A shortage explains waits if it can have caused at least this part of them."""
BESIDE = 0.5
"""A headline on transfers also names communication threads without a CPU if that time is at least this part of the time
in transfers. A transfer also takes long while threads of other members get no CPU, and a rank knows little of that."""

QUEUES = frozenset(cause for cause in CAUSE_ROW if cause.endswith("_queue"))
"""The causes in which somebody of the run queues for a CPU."""

SHORTAGES: dict[str, str] = {
    "stolen": "the hypervisor takes their CPUs",
    "queued": "their threads wait for a CPU",
}
"""Shortage -> the part of a headline that says why ranks take turns. The rules for Prometheus have these words too."""
BLOCKED = CAUSE_ROW["host_blocked"].headline
TRANSFERS = CAUSE_ROW["network"].headline
CROWDED = f"{TRANSFERS}, and the ranks' communication threads get no CPU"
STOLEN = "the loop stands still, and the hypervisor took enough of its CPU time to explain that"


def reason(account: RunAccount, waited: float) -> str:
    """The part of a headline that says why ranks take turns at being late; empty if no shortage explains it.

    ``waited``: the seconds that ranks waited for ranks that were late in compute.
    """
    others = max(1, len(account.ranks) - 1)
    stolen = _seconds_stolen(account)
    queued = sum(rank.cpu_queued for rank in account.ranks if _queues(rank))
    if waited <= 0 or (stolen + queued) * others < EXPLAINED * waited:
        return ""
    return SHORTAGES["stolen" if stolen >= queued else "queued"]


def reason_of_blocked(account: RunAccount) -> str:
    """The part of a headline on `host_blocked`. A thread without its CPU neither runs nor queues: it seems blocked.

    Nobody can tell the two apart, so the headline then says both.
    """
    blocked = sum(rank.seconds["host_blocked"] for rank in account.ranks)
    return STOLEN if 0 < EXPLAINED * blocked <= _seconds_stolen(account) else BLOCKED


def reason_of_transfers(account: RunAccount) -> str:
    """The part of a headline on `network`. It also names threads without a CPU if a good part of the waits had them."""
    transfers = sum(rank.seconds["network"] for rank in account.ranks)
    queued = sum(rank.seconds["collective_queue"] for rank in account.ranks)
    return CROWDED if 0 < BESIDE * transfers <= queued else TRANSFERS


def sentences(account: RunAccount) -> Iterator[str]:
    """The evidence: nodes whose CPUs were stolen, and ranks that queued for a CPU."""
    nodes = _by_node(account)
    for node, ranks in nodes.items():
        if (share := _stolen(ranks)) >= STOLEN_SHARE:
            where = f" of {node}" if len(nodes) > 1 and node else ""
            yield (
                f"the hypervisor took {100 * share:.0f} % of the CPU time that was asked for on the CPUs{where} "
                "(steal). Ranks cannot see when it did: this time counts as compute, or as what else they did then"
            )
    if short := [rank for rank in account.ranks if _queues(rank)]:
        yield _of_queues(account, short)


def beside(account: RunAccount, ranks: Sequence[RankAccount]) -> str:
    """A sentence for a headline on idle devices, if their hosts queued for a CPU for at least half as long. Otherwise
    it is empty. Nobody knows whether that was at the same time."""
    short = [rank for rank in ranks if _queues(rank)]
    idle = sum(rank.gaps or 0.0 for rank in ranks)
    if not 2 * sum(rank.cpu_queued for rank in short) >= idle > 0:
        return ""
    said = _of_queues(account, short)
    return said[0].upper() + said[1:]


def _of_queues(account: RunAccount, short: Sequence[RankAccount]) -> str:
    queued, whole = sum(rank.cpu_queued for rank in short), sum(rank.counted for rank in short)
    who = "the training thread" if len(account.ranks) == 1 else f"the training threads of {_count(short, account)}"
    because = why(account, short)
    return f"{who} queued for a CPU in {100 * queued / whole:.0f} % of the time{f': {because}' if because else ''}"


def why(account: RunAccount, short: Sequence[RankAccount]) -> str:
    """Empty if it is not known. A thread that its quota stops queues, too, beside CPUs that are free."""
    nodes = {rank.newest.node for rank in short}
    given = [one for one in Given(account).cpus if one.node in nodes]
    if not given:
        return ""
    if any(one.throttled < THROTTLED for one in given):
        if not all(one.short for one in given):
            return ""
        most = max(given, key=lambda one: used_by_others(one) / one.allowed)
        if (used := used_by_others(most)) >= OTHERS * most.allowed:
            return f"other programs use {used:.1f} of the {counted(most.allowed, 'CPU')} that the ranks may use"
        few = min(given, key=lambda one: one.limit)
        which = f", {few.limit:g} of {few.of_node} ({few.by})" if few.by else ""
        return f"more threads run than CPUs that they may use{which}"
    worst = max(given, key=lambda one: one.throttled)
    periods = f"{100 * worst.throttled:.0f} % of its periods"
    return f"a quota of {worst.quota or 0.0:g} CPUs stopped their group in {periods}"


def used_by_others(cpus: Cpus) -> float:
    """The CPUs that other programs use, of those that the ranks of a node may use."""
    return min(cpus.allowed, max(0.0, (cpus.used_by_others or 0.0) - cpus.stolen))


def _seconds_stolen(account: RunAccount) -> float:
    """On the nodes of which evidence mentions it. Ranks of a node may use the same CPUs, so one of them counts."""
    nodes = _by_node(account).values()
    return sum(max(rank.cpu_stolen for rank in ranks) for ranks in nodes if _stolen(ranks) >= STOLEN_SHARE)


def _by_node(account: RunAccount) -> dict[str, list[RankAccount]]:
    found: dict[str, list[RankAccount]] = {}
    for rank in account.ranks:
        found.setdefault(rank.newest.node, []).append(rank)
    return found


def _stolen(ranks: list[RankAccount]) -> float:
    """The stolen share on the CPUs that these ranks of one node may use."""
    asked = sum(rank.cpu_asked for rank in ranks)
    return sum(rank.cpu_stolen for rank in ranks) / asked if asked > 0 else 0.0


def _queues(rank: RankAccount) -> bool:
    return rank.wall > 0 and rank.cpu_queued >= QUEUED_SHARE * rank.counted


def _count(some: Sequence[RankAccount], account: RunAccount) -> str:
    return every_rank(len(some)) if len(some) == len(account.ranks) else f"{len(some)} of {len(account.ranks)} ranks"
