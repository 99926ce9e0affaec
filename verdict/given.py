"""What the ranks of a node were given and what they used of it: CPUs, memory, /dev/shm. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from ..ledger.given import CONTAINERS, MEMORY_OF, QUOTA_ABOVE, QUOTA_INSIDE
from ..ledger.reader import Ledger
from ..linux.cpu_lists import cpus_in
from .accounts import RankAccount, RunAccount
from .words import time_of

SATURATED = 0.85
"""CPUs are short if at least this share of them is busy, for the run or for others..."""
THROTTLED = 0.1
"""... or if a quota ended the time of a group in at least this share of its periods."""
UNUSED = 0.5
"""Threads of torch are also mentioned if there are fewer of them than CPUs, and this part of a CPU is left."""
REFAULTED = 0.25
"""Files that are read again are mentioned if they are at least this part of the limit."""
SHM_FULL = 0.95
MANY_THREADS = 6
"""Data workers with fewer threads are not mentioned: each has some that send batches."""
_GIB = 1 << 30
LEAST_SECONDS = 2.0
"""Below this time, nothing is said about what was used."""


@dataclass(frozen=True, slots=True)
class Cpus:
    """The CPUs of all ranks of a run on one node, together."""

    node: str
    ranks: int
    of_node: int
    allowed: int
    """By affinity."""
    quota: float | None
    """By control groups."""
    quota_above: bool
    quota_inside: bool
    """Whether it is set inside of a container."""
    periods: int
    throttled_periods: int
    throttled_seconds: float
    used: float | None
    """The mean number of CPUs that were busy for them; None: not known."""
    used_by_workers: float | None
    used_by_others: float | None
    """The mean number of the allowed CPUs that were busy for others, or that a hypervisor took."""
    stolen: float
    """The mean number of CPUs that a hypervisor took."""
    loop: int
    """The fewest CPUs that a training thread may use."""
    loop_at_start: int
    narrowed_after: float
    """Seconds after the start when the CPUs of that thread were last seen to change."""
    workers: int
    """Those that the data workers of a rank may use together, where they are fewest; 0: there is no worker."""
    workers_list: str
    worker_threads: int
    threads: int
    """Torch's operations use so many, in all ranks together."""
    on_cpus: bool
    """Whether no rank has an accelerator."""
    interop_threads: int
    """How many of them may run at the same time, where the program asks torch for that."""
    omp_threads: int
    """OMP_NUM_THREADS of a rank; 0: not set."""
    bound: bool
    """Whether something inside of its control group has bound it to fewer CPUs than the group may use."""
    launcher: str
    launcher_cpus: int

    @property
    def limit(self) -> float:
        return min(self.allowed, self.quota) if self.quota else self.allowed

    @property
    def by_quota(self) -> bool:
        return bool(self.quota and self.quota < self.allowed)

    @property
    def by(self) -> str:
        """What sets the limit; empty if they may use the whole node."""
        if self.by_quota:
            group = "a control group above" if self.quota_above else "the control group"
            return f"quota of {group}{', inside the container' if self.quota_inside else ''}"
        return "affinity" if self.allowed < self.of_node else ""

    @property
    def throttled(self) -> float:
        """The share of periods."""
        return self.throttled_periods / self.periods if self.periods else 0.0

    @property
    def short(self) -> bool:
        """Whether what they were given is used up."""
        busy = (self.used or 0.0) + (self.used_by_others or 0.0)
        return self.quota_used_up or busy >= SATURATED * self.allowed

    @property
    def quota_used_up(self) -> bool:
        """What others use does not count against a quota of this group."""
        quota, used = self.quota or 0.0, self.used or 0.0
        return quota > 0 and (self.throttled >= THROTTLED or used >= SATURATED * quota)

    @property
    def waits_for_others(self) -> bool:
        """Whether the quota is the limit, but is not what the run is short of: other programs use the CPUs."""
        return self.by_quota and not self.quota_used_up

    @property
    def few_threads(self) -> bool:
        """Whether the ranks compute on CPUs, leave one of these unused, and have no threads for it because of
        OMP_NUM_THREADS: torch's default is a thread for each core."""
        busy = (self.used or self.limit) + (self.used_by_others or 0.0)
        few = self.on_cpus and self.omp_threads > 0 and 0 < self.threads <= self.limit - 1
        return few and busy <= self.limit - UNUSED

    @property
    def many_worker_threads(self) -> bool:
        """Whether one data worker runs more threads than the CPUs could serve."""
        return self.worker_threads >= max(MANY_THREADS, 2 * self.limit)

    @property
    def sentence(self) -> str:
        said = f"may use {_cpus(self.limit)} of {self.of_node} CPUs"
        said += f" ({self.by})" if self.by else ""
        if self.used is not None:
            said += f", used {self.used:.1f}"
        if self.used_by_others is not None and self.used_by_others >= 0.1 * self.allowed:
            said += f", other programs {self.used_by_others:.1f}"
        if self.throttled_periods:
            said += f"; throttled in {self.throttled_periods} of {self.periods} periods"
            said += f", {time_of(self.throttled_seconds)}" if self.throttled_seconds else ""
        if self.threads > max(self.limit, self.ranks) or self.few_threads:
            omp = f"OMP_NUM_THREADS is {self.omp_threads or 'not set'}"
            apart = f"; {self.interop_threads} for inter-op" if self.interop_threads else ""
            said += f"; torch runs operations on {self.threads} thread{'s' * (self.threads > 1)} ({omp}{apart})"
        if 0 < self.workers < self.loop:
            said += f"; data workers may use {self.workers} alone (CPU {self.workers_list})"
        if self.many_worker_threads:
            said += f"; a data worker runs {self.worker_threads} threads"
        if self.loop < self.loop_at_start:
            said += f"; at the start it was {self.loop_at_start}: the program has narrowed it,"
            said += f" {time_of(self.narrowed_after)} after its start"
        if self.launcher_cpus:
            said += f"; {self.launcher.capitalize()} gave {self.launcher_cpus}"
            said += " to each" if 1 < self.ranks <= self.allowed / self.launcher_cpus else ""
        return said

    @property
    def entry(self) -> dict[str, object]:
        return {**asdict(self), "limit": self.limit, "by": self.by, "short": self.short, "sentence": self.sentence}


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a node, or of the control group of the rank that is nearest to its limit."""

    node: str
    rank: int
    used: int
    limit: int
    peak: int
    of: str
    """`node`, `group` or `above`, as MEMORY_OF."""
    refaults: int
    """Bytes of file cache that had to be read again."""
    shm: int
    shm_used: int

    @property
    def sentence(self) -> str:
        whose = {"node": "", "group": " (control group)", "above": " (control group above)"}[self.of]
        said = f"{_gib(self.used)} of {_gib(self.limit)} GiB{whose}"
        if self.peak > 1.05 * self.used:
            said += f", at most {_gib(self.peak)}"
        if self.refaults >= REFAULTED * self.limit:
            said += f"; {_gib(self.refaults)} GiB of files were dropped and read again"
        if self.shm and self.shm_used >= SHM_FULL * self.shm:
            said += f"; /dev/shm is full: {_gib(self.shm_used)} of {_gib(self.shm)} GiB"
        return said

    @property
    def entry(self) -> dict[str, object]:
        return {**asdict(self), "sentence": self.sentence}


@dataclass(frozen=True)
class Given:
    account: RunAccount

    @cached_property
    def cpus(self) -> list[Cpus]:
        return [found for node, ranks in self._nodes if (found := _cpus_of(node, ranks)) is not None]

    @cached_property
    def memory(self) -> list[Memory]:
        return [found for node, ranks in self._nodes if (found := _memory_of(node, ranks)) is not None]

    @property
    def _nodes(self) -> list[tuple[str, list[RankAccount]]]:
        found: dict[str, list[RankAccount]] = {}
        for rank in self.account.ranks:
            found.setdefault(rank.newest.node, []).append(rank)
        return list(found.items())

    @property
    def entry(self) -> dict[str, object]:
        """As JSON. The sentences are those for a person: one node of many speaks for all, the one that is shortest."""
        return {
            "cpus": [one.entry for one in self.cpus],
            "memory": [one.entry for one in self.memory],
            "sentences": [*self._sentences()],
        }

    def _sentences(self) -> Iterator[str]:
        if self.cpus:
            worst = max(self.cpus, key=lambda one: (one.short, (one.used or 0.0) / one.limit))
            yield f"{_on(worst.node, worst.ranks, len(self.cpus))}{worst.sentence}"
        if self.memory:
            fullest = max(self.memory, key=lambda one: one.used / one.limit)
            yield f"{_on(fullest.node, 1, len(self.memory))}memory {fullest.sentence}"


def _on(node: str, ranks: int, nodes: int) -> str:
    who = f"{ranks} ranks " if ranks > 1 else ""
    return f"on {node}, {who}" if nodes > 1 else who


def _gib(size: int) -> str:
    return f"{size / _GIB:.{0 if size >= 10 * _GIB else 2}f}"


def _cpus(number: float) -> str:
    return f"{number:g}" if number == int(number) else f"{number:.1f}"


def _cpus_of(node: str, ranks: Sequence[RankAccount]) -> Cpus | None:
    ledgers = [rank.newest for rank in ranks if rank.newest.cpus_node]
    if not ledgers:
        return None
    allowed = frozenset[int]().union(*(cpus_in(ledger.strings["cpu_list"]) for ledger in ledgers))
    quotas = {ledger.cpu_quota_id: ledger for ledger in ledgers if ledger.cpu_quota_milli}
    limited = all(ledger.cpu_quota_milli for ledger in ledgers)
    least = max(quotas.values(), key=lambda one: one.cpu_throttled_periods, default=None)
    counted = [ledger for ledger in ledgers if ledger.given_ns >= LEAST_SECONDS * 1e9]
    used = sum(ledger.used_cpu_ns / ledger.given_ns for ledger in counted) if counted else None
    asked = max((rank.cpu_asked / rank.counted for rank in ranks if rank.counted > 0), default=0.0)
    stolen = max((rank.cpu_stolen / rank.counted for rank in ranks if rank.counted > 0), default=0.0)
    withw = [ledger for ledger in ledgers if ledger.worker_cpus]
    fewest = min(withw, key=lambda one: one.worker_cpus, default=None)
    told = max(ledgers, key=lambda one: one.launcher_cpus)
    narrow = min(ledgers, key=lambda one: one.cpus_allowed)
    return Cpus(
        node=node,
        ranks=len(ledgers),
        of_node=max(ledger.cpus_node for ledger in ledgers),
        allowed=max(len(allowed), *(ledger.cpus_allowed for ledger in ledgers)),  # a list may be cut off
        quota=sum(one.cpu_quota_milli for one in quotas.values()) / 1000 if limited else None,
        quota_above=least is not None and bool(least.cpu_quota_of & QUOTA_ABOVE),
        quota_inside=least is not None
        and bool(least.cpu_quota_of & QUOTA_INSIDE)
        and told.strings["launcher"] in CONTAINERS,
        periods=least.cpu_periods if least else 0,
        throttled_periods=least.cpu_throttled_periods if least else 0,
        throttled_seconds=least.cpu_throttled_ns / 1e9 if least else 0.0,
        used=used,
        used_by_workers=sum(one.worker_cpu_ns / one.given_ns for one in counted) if counted else None,
        used_by_others=max(0.0, asked - used) if used is not None and asked else None,
        stolen=stolen,
        loop=narrow.cpus_allowed,
        loop_at_start=min(ledger.cpus_at_start for ledger in ledgers),
        narrowed_after=max(0.0, (narrow.cpus_changed_ns - narrow.start_ns) / 1e9),
        workers=fewest.worker_cpus if fewest else 0,
        workers_list=fewest.strings["worker_cpu_list"] if fewest else "",
        worker_threads=max(ledger.worker_threads for ledger in ledgers),
        threads=sum(ledger.threads_intra for ledger in ledgers),
        on_cpus=all(ledger.device == "cpu" for ledger in ledgers),
        interop_threads=sum(ledger.threads_inter for ledger in ledgers),
        omp_threads=max(ledger.threads_omp for ledger in ledgers),
        bound=all(ledger.cpus_at_start < ledger.cpus_of_group for ledger in ledgers),
        launcher=told.strings["launcher"],
        launcher_cpus=told.launcher_cpus,
    )


def _memory_of(node: str, ranks: Sequence[RankAccount]) -> Memory | None:
    known = [rank.newest for rank in ranks if rank.newest.memory_at_ns and rank.newest.memory_limit_bytes]
    if not known:
        return None
    fullest: Ledger = max(known, key=lambda one: one.memory_used_bytes / one.memory_limit_bytes)
    return Memory(
        node=node,
        rank=fullest.rank,
        used=fullest.memory_used_bytes,
        limit=fullest.memory_limit_bytes,
        peak=fullest.memory_peak_bytes,
        of=MEMORY_OF[fullest.memory_of] or "node",
        refaults=max(one.refault_bytes for one in known),
        shm=fullest.shm_bytes,
        shm_used=fullest.shm_used_bytes,
    )
