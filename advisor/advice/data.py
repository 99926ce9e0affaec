"""Advice on data loading: the number of workers, prefetching, decoding, and where the data is read from."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median

from ...ledger.causes import CAUSE
from ..whatif.changes import Changes
from ..whatif.trace import RankTrace
from .case import Case
from .gains import formula, percent, replayed, without
from .rule import FLOOR, Found, Gain, Rule

MOST_WORKERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The numbers of additional workers that are tried."""
ENOUGH = 0.9
"""The advice is the smallest number of workers that reaches this share of the largest gain."""
CROWDED = 0.1
"""If workers queue for a CPU for more than this share of their time with a CPU, no CPU is free."""
RARE = 0.2
"""If the loop waits in at most this share of the steps, the loader is fast enough on average."""
REAL = 0.1
"""If a wait is shorter than this share of the median step, the batch was ready. The same holds if workers read and
computed for less than this share of the rest of the wait."""
PREFETCH = 2
"""The default of DataLoader's prefetch_factor."""
MOST_PREFETCH = 64
"""If the longest wait needs a larger increase of prefetch_factor than this, none is advised."""
SHARD_READ = 1 << 20
"""The bytes of one read from a shard, as sequential readers request them."""
SMALL_READ = 1 << 17
"""Reads that return fewer bytes than this on average are small."""
_READ, _CPU, _QUEUE, _HANDOFF = (CAUSE[cause] for cause in ("data_read", "data_cpu", "data_queue", "data_handoff"))
_MADE = (_READ, _CPU, _QUEUE)


def _workers(case: Case) -> Found | None:
    have = case.workers()
    read, cpu, queue = (case.seconds(cause) for cause in ("data_read", "data_cpu", "data_queue"))
    if have is None or case.basis is None or read + cpu < FLOOR * case.window / len(case.ranks):
        return None
    most = _room(case, have) if cpu > read else MOST_WORKERS[-1]
    tried = {more: case.saves(Changes(workers=more)) for more in MOST_WORKERS if more <= most}
    best = max(tried.values(), default=0.0)
    if best < FLOOR or queue > CROWDED * (cpu + queue) > CROWDED * read:
        return None
    more = next(more for more, share in tried.items() if share >= ENOUGH * best)
    gain = replayed(case, Changes(workers=more))
    if gain is None:
        return None
    return Found(
        f"Set num_workers={have + more} in the DataLoader that the loop waits for (it has {have})",
        gain,
        (
            f"the loop waits for {_who(have)}: {percent(read / case.window)} of the time because of blocked reads,"
            f" {percent(cpu / case.window)} because of CPU work, {percent(queue / case.window)} because no CPU is free",
        ),
        {"num_workers": have + more},
    )


def _who(workers: int) -> str:
    return "the batch that it makes itself" if not workers else f"its {workers} worker{'s' * (workers > 1)}"


def _room(case: Case, have: int) -> int:
    """The number of additional workers for which each rank of this node has CPUs; 0 if not known."""
    if case.counters.cpus is None:
        return 0
    return max(0, int(case.counters.cpus / len(case.ranks)) - 1 - have)


def _prefetch(case: Case) -> Found | None:
    have = case.workers()
    if not have or case.basis is None:
        return None
    ranks = case.basis.trace.ranks
    waits = [_waits(one) for one in ranks]
    slow = [max(step) for step in zip(*waits, strict=True)]
    rare = [wait for wait in slow if wait > 0]
    if not rare or len(rare) > RARE * len(slow):
        return None
    step = median(case.basis.walls)
    longest = sorted(rare)[ceil(ENOUGH * len(rare)) - 1]
    more = ceil(longest / (have * step))
    if more > MOST_PREFETCH:
        return None  # such a long wait is not a hiccup: it may be an evaluation, whose loader starts from nothing
    saved = sum(min(wait, more * have * step) for wait in rare) / sum(case.basis.walls)
    if saved < FLOOR:
        return None
    return Found(
        f"Set prefetch_factor={PREFETCH + more} in the DataLoader ({PREFETCH} unless you have set it)",
        formula(saved),
        (
            f"{len(rare)} of {len(slow)} steps wait for a batch, for up to {longest / 1e6:.0f} ms; the workers keep up"
            " with the others",
        ),
        {"prefetch_factor": PREFETCH + more},
    )


def _waits(one: RankTrace) -> Sequence[int]:
    """For each step, the ns in which the loop waited for a batch that was being made; 0 if the wait was short."""
    least = REAL * median(step.wall for step in one.steps)
    found = []
    for step in one.steps:
        wait = sum(step.own[cause] for cause in _MADE)
        found.append(wait if wait >= least else 0)
    return found


def _decode(case: Case) -> Found | None:
    part = 1 - _receiving(case)
    cpu, queue = case.share("data_cpu"), part * case.share("data_queue")
    return Found(
        "Decode the samples once, before the training, and let the loader read the result",
        _with_queue(case, "data_cpu", part),
        (
            f"the loop waits for workers that are on a CPU {percent(cpu)} or queue for one {percent(queue)} of the"
            " time, which includes the time in which they pickle what is not a tensor",
        ),
    )


def _cache(case: Case) -> Found | None:
    return Found(
        "Copy the data to a local disk or into memory before the training, and read it there",
        without(case, "data_read"),
        (f"the loop waits for workers that are blocked on reads {percent(case.share('data_read'))} of the time",),
    )


def _shards(case: Case) -> Found | None:
    size = case.counters.bytes_per_read
    if size is None or not 0 < size < SMALL_READ or case.share("data_read") <= 0:
        return None
    gain = replayed(case, Changes(storage=size / SHARD_READ))
    if gain is None:
        return None
    return Found(
        f"Pack the samples into shards (tar files, say) that are read in pieces of {SHARD_READ >> 20} MiB",
        gain,
        (
            f"a read returns {size / 1024:.0f} KiB on average, and the loop waits for reads"
            f" {percent(case.share('data_read'))} of the time",
        ),
        {"bytes_per_read": SHARD_READ},
    )


def _handoff(case: Case) -> Found | None:
    """Whoever receives a batch may also queue for a CPU. That is a part of `data_queue`."""
    part = _receiving(case)
    return Found(
        "Let the dataset return a few tensors instead of Python objects",
        _with_queue(case, "data_handoff", part),
        (
            f"the loop waits {percent(case.share('data_handoff') + part * case.share('data_queue'))} of the time for"
            " finished batches to reach it: they are pickled, copied or collated on the way",
        ),
    )


def _with_queue(case: Case, cause: str, part: float) -> Gain:
    """The gain without a cause, and without a part of `data_queue`."""
    alone, queueing = without(case, cause), without(case, cause, "data_queue")
    if part <= 0:
        return alone
    if part >= 1:
        return queueing
    share = alone.share + part * (queueing.share - alone.share)
    return Gain(share, alone.least, queueing.most, queueing.how)


def _receiving(case: Case) -> float:
    """The part of `data_queue` that is in steps whose batch was ready: no worker read or computed while the loop
    waited for it."""
    if case.basis is None:
        return 0.0
    steps = [step.own for one in case.basis.trace.ranks for step in one.steps]
    ready = sum(own[_QUEUE] for own in steps if own[_READ] + own[_CPU] <= REAL * (own[_QUEUE] + own[_HANDOFF]))
    return ready / max(1, sum(own[_QUEUE] for own in steps))


def _start(case: Case) -> Found | None:
    share = case.share("data_start")
    if share < FLOOR:
        return None
    return Found(
        "Set persistent_workers=True in the DataLoader, and create the loader for the evaluation only once",
        without(case, "data_start"),
        (f"the loop waits {percent(share)} of the time for data workers to start",),
        {"persistent_workers": "True"},
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "data.workers",
        ("storage", "cpu"),
        "The loop waits for data workers that are blocked or on a CPU, and more workers would find a free CPU",
        "Increase `num_workers` until more workers save little",
        "Replay with that many workers. It assumes that one worker makes each batch, and that reads do not"
        " slow each other",
        "`data_read` and `data_cpu` fall, `data_queue` does not rise",
        _workers,
    ),
    Rule(
        "data.prefetch",
        ("storage", "cpu"),
        "The loop waits in at most a fifth of its steps. In the other steps its workers keep up",
        "Increase `prefetch_factor` until the batches of all workers together cover the longest wait",
        "Each wait is shorter by workers × additional batches × median step, because a worker starts a batch that much"
        " earlier",
        "fewer steps wait for data",
        _prefetch,
    ),
    Rule(
        "data.decode",
        ("cpu",),
        "The loop waits for workers that compute or queue for a CPU",
        "Decode the samples before the training",
        "Replay without `data_cpu`, and without `data_queue` except in steps whose batch was ready",
        "`data_cpu` and `data_queue` are gone",
        _decode,
    ),
    Rule(
        "data.cache",
        ("storage",),
        "The loop waits for workers that are blocked on reads",
        "Read the data from a local disk or from memory",
        "Replay without `data_read`. This is the gain of storage without delay",
        "`data_read` falls",
        _cache,
    ),
    Rule(
        "data.shards",
        ("storage",),
        "The loop waits for workers that are blocked on reads, and a read returns less than 128 KiB on average (counted"
        " for live ranks of this node)",
        "Pack the samples into shards",
        "Replay with reads that take bytes per read / 1 MiB of their time, because small reads are mostly latency",
        "`data_read` falls, and each read returns more bytes",
        _shards,
    ),
    Rule(
        "data.handoff",
        ("host",),
        "The loop waits for finished batches to reach it",
        "Return tensors rather than Python objects",
        "Replay without `data_handoff`, and without `data_queue` in steps whose batch was ready, because there the loop"
        " gets no CPU to receive it",
        "`data_handoff` falls",
        _handoff,
    ),
    Rule(
        "data.start",
        ("host",),
        "The loop waits for data workers to start, for example at the start of each epoch or evaluation",
        "Set `persistent_workers=True`",
        "Replay without `data_start`. Workers that are kept still start once",
        "`data_start` stops growing after the first epoch",
        _start,
    ),
)
