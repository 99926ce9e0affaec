"""What the data workers of a run were doing while its loop waited for them. Pure functions; all thresholds are here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..ledger.causes import CAUSE_ROW, DATA_CAUSES
from ..ledger.reader import Ledger
from . import by_mount
from .accounts import RankAccount, RunAccount
from .ends import counted
from .facts import DOES
from .own_files import OUR_BYTES_PER_SECOND
from .sampled import is_sampled

LEAST_LOOKS = 10
"""With fewer looks at data workers, nothing is said about locks or about work in parallel."""
LOCKED = 0.25
"""The workers wait for a lock of another process if this share of the looks found a worker that does."""
PARALLEL = 0.5
"""Workers work in parallel if at least two of them did so in this share of the looks at several."""
BATCH_BYTES, CALL_BYTES, SAMPLE_BYTES = 256, 64, 16
"""Workers read files if they read at least BATCH_BYTES a batch, beyond CALL_BYTES a call and SAMPLE_BYTES a sample: by
that much they receive the requests and hand over tensors."""
DISK_BYTES = 512
"""Or if a disk had to read this much for each batch."""
ONCE_BYTES = 16 << 20
"""A worker reads less than this once, when it imports modules. It counts only if there was a call for each batch."""
MOST_SKIPS = 0.05
"""A loop skips batches if that happens in at most this share of its steps. Otherwise each step needs many batches."""
EVIDENCE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Makers:
    """Who makes the batches of a loop, and what is said of its waits for them, by cause."""

    headlines: dict[str, str]
    words: dict[str, str]


WORKERS = Makers(
    {cause: row.headline for cause, row in CAUSE_ROW.items()}, {cause: row.words for cause, row in CAUSE_ROW.items()}
)
LOOP = Makers(
    WORKERS.headlines
    | {
        "data_read": "the loop is blocked while it makes its own batches",
        "data_cpu": "the loop computes its own batches on the CPU",
        "data_queue": "the loop gets no CPU for its own batches",
    },
    WORKERS.words
    | {
        "data_read": "making its own batches, and blocked",
        "data_cpu": "making its own batches on the CPU",
        "data_queue": "making its own batches without a CPU",
    },
)
OTHERS = Makers(
    WORKERS.headlines
    | {
        "data_read": "the threads or processes that make the batches are blocked",
        "data_cpu": "the threads or processes that make the batches are busy on the CPU",
        "data_queue": "the threads or processes that make the batches get no CPU",
    },
    WORKERS.words
    | {
        "data_read": "waiting for a thread or process that makes batches, which was blocked",
        "data_cpu": "waiting for a thread or process that makes batches, which was on a CPU",
        "data_queue": "waiting for a thread or process that makes batches, which got no CPU",
    },
)
BLOCKED = WORKERS.headlines["data_read"]
OWN_BLOCKED = LOOP.headlines["data_read"]
MAKERS_BLOCKED = OTHERS.headlines["data_read"]
NO_READS = f"{BLOCKED} (no reads were seen: a lock, a sleep, a pipe or the network?)"
ON_LOCK = f"{BLOCKED} on a lock that they share"
GONE = "the loop waited for a data worker that is gone"
NEARLY_ALL = 0.9
"""Less than this part of a time is *mostly* what it is said to be."""
NOT_COME = "the loop waits for a batch that has not come"
ON_READS = f"{BLOCKED} on reads"


@dataclass(frozen=True, slots=True)
class OpenWait:
    """A wait for a batch that is open now, or was open when the rank ended."""

    rank: int
    seconds: float
    pid: int
    """The worker that owes the batch, in the rank's pid namespace; 0: not known."""
    doing: str
    """One of DOES; empty: not known."""
    alive: bool
    """Whether the rank lives."""

    @property
    def sentence(self) -> str:
        whom = f"worker {self.pid}" if self.pid else "its loader"
        what = f", which {DOES[self.doing]}" if self.doing else ""
        if self.alive:
            return f"rank {self.rank} has been waiting {self.seconds:.1f} s for a batch from {whom}{what}"
        return f"rank {self.rank} had been waiting {self.seconds:.1f} s for a batch from {whom} when it ended"


def open_waits(account: RunAccount, doing: Mapping[int, str], longer_than: float) -> list[OpenWait]:
    """``doing``: rank -> what the worker that owes its batch does now, as one of DOES, as far as that is known."""
    return [
        OpenWait(
            rank.rank,
            rank.open_data,
            rank.newest.open_worker_pid,
            doing.get(rank.rank, "") if rank.newest.alive else "",
            rank.newest.alive,
        )
        for rank in account.ranks
        if rank.open_data >= longer_than
    ]


def reads_seen(ranks: Sequence[RankAccount]) -> bool | None:
    """Whether files were read while the loop waited for blocked workers; None if that is not known."""
    if not any(rank.seconds["data_read"] > 0 for rank in ranks):
        return None
    known = [rank for rank in ranks if rank.worker_read_calls]
    if not known:
        return _own_reads(ranks)
    files = sum(
        rank.worker_read_bytes - CALL_BYTES * rank.worker_read_calls - SAMPLE_BYTES * rank.samples for rank in known
    )
    batches = sum(rank.batches for rank in known)
    looked = sum(rank.worker_looks.get("read", 0) for rank in known)
    disk = sum(rank.worker_disk_bytes for rank in known)
    calls = sum(rank.worker_read_calls for rank in known)
    often = files >= BATCH_BYTES * batches and (calls >= batches or files >= ONCE_BYTES)
    return often or disk >= max(DISK_BYTES * batches, ONCE_BYTES) or _reading(known, looked)


def _reading(ranks: Sequence[RankAccount], looked: int) -> bool:
    looks = _looks(ranks)
    return looks >= LEAST_LOOKS and looked >= LOCKED * looks


def _own_reads(ranks: Sequence[RankAccount]) -> bool | None:
    """Of ranks that make their batches themselves."""
    own = [rank for rank in ranks if rank.newest.loader_workers == 0]
    if not own or len(own) < len(ranks):
        return None
    batches = sum(rank.batches for rank in own)
    if any(rank.thread_major_faults >= rank.batches > 0 for rank in own):
        return True
    if not any(rank.thread_read_bytes for rank in own):
        return None  # also if it is not known
    read = sum(rank.thread_read_bytes - OUR_BYTES_PER_SECOND * rank.wall for rank in own)
    if BATCH_BYTES * batches <= read < ONCE_BYTES:
        return None  # it may have imported modules
    return read >= BATCH_BYTES * batches


def makes_own(ranks: Sequence[RankAccount]) -> bool:
    """Whether the ranks have neither data workers nor others that make batches ahead."""
    return all(rank.newest.loader_workers == 0 or (_has_none(rank) and _makes_itself(rank)) for rank in ranks)


def made_ahead(ranks: Sequence[RankAccount]) -> bool:
    """Whether threads or processes of the training make the batches, without a loader."""
    return all(_has_none(rank) and rank.newest.words["data_awaited_ns"][0] for rank in ranks) and not makes_own(ranks)


def makers_of(ranks: Sequence[RankAccount]) -> Makers:
    return LOOP if makes_own(ranks) else OTHERS if made_ahead(ranks) else WORKERS


def _has_none(rank: RankAccount) -> bool:
    return rank.newest.loader_workers < 0


def _makes_itself(rank: RankAccount) -> bool:
    """Whether most of its time for batches is in `whyidle.phase("data")`, in loads of files with samples, or in
    functions of the loop in which looks found it."""
    if rank.newest.marked_data:
        return 2 * rank.newest.words["data_awaited_ns"][0] < 1e9 * sum(rank.seconds[cause] for cause in DATA_CAUSES)
    return is_sampled([rank], *DATA_CAUSES)


def _looks(ranks: Sequence[RankAccount]) -> int:
    return sum(sum(rank.worker_looks.values()) for rank in ranks)


def _locked(ranks: Sequence[RankAccount]) -> int:
    return sum(rank.worker_looks.get("lock", 0) for rank in ranks)


def wait_for_lock(ranks: Sequence[RankAccount]) -> bool:
    """Whether workers were often seen waiting for a lock that processes share."""
    looks = _looks(ranks)
    return looks >= LEAST_LOOKS and _locked(ranks) >= LOCKED * looks


def seen_in_parallel(ranks: Sequence[RankAccount]) -> bool:
    """Whether several workers were seen to work, or to be blocked by something else than a lock, at the same moment."""
    together = sum(rank.together_looks for rank in ranks)
    return together >= LEAST_LOOKS and sum(rank.parallel_looks for rank in ranks) >= PARALLEL * together


def blocked_on(ranks: Sequence[RankAccount]) -> str:
    return "blocked on reads" if reads_seen(ranks) else "blocked"


def reason(ranks: Sequence[RankAccount]) -> str:
    """The reason in a headline for waits in `data_read`."""
    if wait_for_lock(ranks):
        return ON_LOCK
    seen, makers = reads_seen(ranks), makers_of(ranks)
    blocked = makers.headlines["data_read"]
    if mounts := by_mount.blocked_on(ranks, "data"):
        return f"{blocked}, on {mounts}" if makers is LOOP else f"{blocked} on {mounts}"
    if makers is LOOP:
        return f"{blocked}: it reads files" if seen else blocked
    if seen is False and (known := _mostly(ranks)):
        return f"{blocked}: {known}"
    return blocked if seen is None else ON_READS if seen else NO_READS


def _mostly(ranks: Sequence[RankAccount]) -> str:
    """What most looks found workers in that were blocked, if that is sure: *sleeping*, or *waiting for the network*."""
    found = {kind: sum(rank.worker_looks.get(kind, 0) for rank in ranks) for kind in LOOKED if kind != "running"}
    most = max(found, key=found.__getitem__)
    sure = sum(found.values()) >= LEAST_LOOKS and 2 * found[most] > sum(found.values())
    return LOOKED[most] if sure and most in ("sleep", "network") else ""


def reason_of_data(ranks: Sequence[RankAccount], cause: str) -> str:
    """The reason in a headline for a cause of waits for batches."""
    said = reason(ranks) if cause == "data_read" else makers_of(ranks).headlines[cause]
    return f"{said}: {few}" if (few := uneven(ranks)) else said


def words_of(ranks: Sequence[RankAccount], cause: str) -> str:
    """What a loop does in a cause, as evidence says it."""
    if cause == "unattributed" and (why := reason_of_unattributed(ranks)):
        said = "waiting for a data worker that is gone" if why == GONE else "waiting for a batch that has not come"
        named = sum(rank.data_gone if why == GONE else rank.open_data for rank in ranks)
        return said if named >= NEARLY_ALL * sum(rank.seconds[cause] for rank in ranks) else f"mostly {said}"
    return (makers_of(ranks) if cause in DATA_CAUSES else WORKERS).words[cause]


def reason_of_unattributed(ranks: Sequence[RankAccount]) -> str:
    """The reason in a headline for unattributed time; empty if it is not in waits for batches."""
    whole = sum(rank.seconds["unattributed"] for rank in ranks)
    gone, waiting = sum(rank.data_gone for rank in ranks), sum(rank.open_data for rank in ranks)
    if 2 * (gone + waiting) <= whole:
        return ""
    return GONE if gone >= waiting else NOT_COME


def exhausted(ledger: Ledger) -> int:
    """How many data workers had yielded all of their samples in most of the waits for batches, while others went on. At
    least one worker went on."""
    waited, ns = sum(ledger.cause_ns[cause] for cause in DATA_CAUSES), ledger.words["data_exhausted_ns"][0]
    if not ns or 2 * ns < waited:
        return 0
    return max(0, min(ledger.loader_workers - 1, round(ledger.words["exhausted_worker_ns"][0] / ns)))


def uneven(ranks: Sequence[RankAccount]) -> str:
    """Such as `1 of 2 data workers has no samples left`; empty if all workers have some."""
    worst = max(ranks, key=lambda rank: exhausted(rank.newest)).newest
    number = exhausted(worst)
    have = "has" if number == 1 else "have"
    return f"{number} of {worst.loader_workers} data workers {have} no samples left" if number else ""


def skips(ranks: Sequence[RankAccount]) -> bool:
    """Whether the loop took many batches without computing on them, as it does to skip them after a restart."""
    return any(rank.skipped_batches and rank.skips <= max(2, MOST_SKIPS * rank.steps) for rank in ranks)


def sentences(account: RunAccount) -> Iterator[str]:
    """What is known about the workers of a run that lost time to them."""
    ranks, window = account.ranks, account.rank_seconds
    if sum(rank.seconds["data_read"] for rank in ranks) >= EVIDENCE_SHARE * window:
        yield from _about_blocked(ranks)
    if (gone := sum(rank.data_gone for rank in ranks)) >= EVIDENCE_SHARE * window:
        yield f"{gone:.1f} s were waits for a batch whose worker is gone: its process has ended"
    if skips(ranks) and (seconds := sum(rank.skipped for rank in ranks)) >= EVIDENCE_SHARE * window:
        yield (
            f"the loop took {sum(rank.skipped_batches for rank in ranks)} batches without computing on them, in"
            f" {seconds:.1f} s: it skips what it had trained on before a restart"
        )


def _about_blocked(ranks: Sequence[RankAccount]) -> Iterator[str]:
    if reads_seen(ranks) and (calls := sum(rank.worker_read_calls for rank in ranks)):
        read, disk = sum(rank.worker_read_bytes for rank in ranks), sum(rank.worker_disk_bytes for rank in ranks)
        # Pages of mapped files are read without calls.
        how = f"{by_mount.size_of(read)} in {calls} calls" if read >= disk else f"{by_mount.size_of(disk)} from disks"
        yield f"data workers read {how} for the batches that the loop waited for"
    looks = _looks(ranks)
    if looks >= LEAST_LOOKS:
        found = {kind: sum(rank.worker_looks.get(kind, 0) for rank in ranks) for kind in LOOKED}
        said = [
            f"{counted(found[kind], 'time')} {LOOKED[kind]}"
            for kind in sorted(found, key=lambda kind: -found[kind])[:3]
        ]
        said = [each for each in said if not each.startswith("0 ")]
        yield f"{counted(looks, 'look')} at workers found them {', '.join(said)}"


LOOKED: dict[str, str] = {
    "running": "on a CPU or queueing for one",
    "lock": "waiting for a lock of another process",
    "sleep": "sleeping",
    "read": "reading files",
    "network": "waiting for the network",
    "other": "blocked by something else",
}
