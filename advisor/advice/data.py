"""Advice on data loading: the number of workers, prefetching, decoding, and where the data is read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, inf
from statistics import median

from ...ledger.causes import CAUSE, DATA_CAUSES
from ...ledger.mounts import STORE
from ...ledger.programs import PREFETCH as AHEAD
from ...ledger.programs import WORKERS
from ...verdict import by_mount, mounts, workers
from ...verdict.ends import listed
from ...verdict.sampled import blocked_on, is_sampled
from ...verdict.words import time_of
from ..whatif.changes import NONE, Changes
from ..whatif.trace import RankTrace
from .case import Case
from .gains import ENOUGH, at_most, fewest_workers, formula, percent, replayed, untold, without
from .given import free_cpus, short_of_cpus
from .options import named, setting
from .rule import FLOOR, FULL, Found, Gain, Rule

MANY_PIECES = 16
"""A batch of fewer tensors and objects is not slow because of their number."""
MOST_WORKERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The numbers of additional workers that are tried."""
MOST_SERVED = 1024
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
DECODED = 100e-6
"""A CPU needs at least this many seconds to decode a sample. To take one from memory and collate it takes less."""
SHARD_READ = 1 << 20
"""The bytes of one read from a shard, as sequential readers request them."""
SMALL_READ = 1 << 17
"""Reads that return fewer bytes than this on average are small."""
MOSTLY_FULL = 0.8
"""More workers are not advised if this share of the blocked time is at mounts that are at their bandwidth."""
MOSTLY_EVALUATED = 0.8
"""Advice on loaders means that of the evaluation if this share of the waits for batches is for its batches."""
_READ, _CPU, _QUEUE, _HANDOFF = (CAUSE[cause] for cause in ("data_read", "data_cpu", "data_queue", "data_handoff"))


def _workers(case: Case) -> Found | None:
    have = case.workers()
    read, cpu, queue = (case.seconds(cause) for cause in ("data_read", "data_cpu", "data_queue"))
    if have is None or case.basis is None or read + cpu < FLOOR * case.window / len(case.ranks):
        return None
    if read > cpu and mounts.full(case.ranks, "data") >= MOSTLY_FULL:
        return None
    most = _room(case, have) if cpu > read else min(MOST_WORKERS[-1], _served(case, read / max(cpu, 1e-9)) - have)
    more = fewest_workers(case, [more for more in MOST_WORKERS if more <= most])
    if more is None or queue > CROWDED * (cpu + queue) > CROWDED * read:
        return None
    gain = replayed(case, Changes(workers=more))
    if gain is None or workers.wait_for_lock(case.ranks) or workers.uneven(case.ranks):
        return None
    gain = at_most(gain, free_cpus(case))
    if not (workers.seen_in_parallel(case.ranks) or mounts.latent(case.ranks, "data")):
        gain = replace(gain, least=0.0)
    if read > cpu and gain.least < FLOOR:
        gain = untold(gain)
    return Found(
        f"Set {setting(case, WORKERS, have + more)} {_of_its_loader(case)}(it has {have}){_parts(case, have + more)}",
        gain,
        (
            f"the loop waits for {_who(have)}: {percent(read / case.window)} of the time"
            f" {workers.blocked_on(case.ranks)}, {percent(cpu / case.window)} because of CPU work,"
            f" {percent(queue / case.window)} because no CPU is free",
            *by_mount.more_readers(case.ranks),
        ),
        {"num_workers": have + more},
    )


def _of_its_loader(case: Case) -> str:
    """Which of several loaders is meant, if the setting is that of a loader."""
    name = named(case, WORKERS)
    if name is None or name.place != "DataLoader":
        return ""
    return "of the evaluation " if _is_evaluated(case, MOSTLY_EVALUATED) else "that the loop waits for "


def _is_evaluated(case: Case, share: float) -> bool:
    """Whether at least this share of the waits for batches is for those of evaluations."""
    evaluates = sum(rank.eval_data for rank in case.ranks)
    return evaluates > 0 and evaluates >= share * sum(case.seconds(cause) for cause in DATA_CAUSES)


def _parts(case: Case, count: int) -> str:
    """What several workers of an IterableDataset need, because torch does not give each a part of it."""
    if count < 2 or not any(rank.newest.words["loader_iterables"][0] for rank in case.ranks):
        return ""
    return (
        ". The dataset is an IterableDataset: each worker must yield its own part of the samples"
        " (torch.utils.data.get_worker_info), or the loop gets each sample several times"
    )


def _who(workers: int) -> str:
    return "the batch that it makes itself" if not workers else f"its {workers} worker{'s' * (workers > 1)}"


def _room(case: Case, have: int) -> int:
    """The number of additional workers for which each rank has CPUs; 0 if not known."""
    if not case.given.cpus and case.counters.cpus is None:
        return 0
    return max(0, _served(case) - 1 - have)


def _served(case: Case, blocked: float = 0.0) -> int:
    """How many workers the CPUs of each rank can serve. ``blocked``: their blocked time divided by their time on a
    CPU."""
    cpus = [min(one.limit, one.workers or one.limit) / one.ranks for one in case.given.cpus]
    if case.counters.cpus is not None:
        cpus.append(case.counters.cpus / len(case.ranks))
    return int(min(MOST_SERVED, min(cpus, default=MOST_SERVED) * (1 + blocked)))


def _prefetch(case: Case) -> Found | None:
    have = case.workers()
    if not have or case.basis is None or _is_evaluated(case, 0.5):
        return None  # the loader of an evaluation starts from nothing
    ranks = case.basis.trace.ranks
    waits = [_waits(one) for one in ranks]
    slow = [max(step) for step in zip(*waits, strict=True)]
    rare = [wait for wait in slow if wait > 0]
    if not rare or len(rare) > RARE * len(slow) or workers.uneven(case.ranks) or _regular(case, slow):
        return None
    step = median(case.basis.walls)
    longest = sorted(rare)[ceil(ENOUGH * len(rare)) - 1]
    more = ceil(longest / (have * step))
    if more > MOST_PREFETCH:
        return None  # such a long wait is not a hiccup: it may be an evaluation, whose loader starts from nothing
    saved = sum(min(wait, more * have * step) for wait in rare)
    # While the loop waits, the worker is busy. It can work ahead only in the rest of the time.
    saved = min(saved, sum(case.basis.walls) - sum(rare)) / sum(case.basis.walls)
    saved *= 1 - mounts.full(case.ranks, "data")  # it may be busy in the other steps, too
    if saved < FLOOR:
        return None
    known = max(one.prefetched for one in ranks)
    now = known or PREFETCH
    return Found(
        f"Set {setting(case, AHEAD, now + more)} (it is {now}{'' if known else ' unless you have set it'})",
        formula(saved),
        (
            f"{len(rare)} of {len(slow)} steps wait for a batch, for up to {longest / 1e6:.0f} ms; the workers keep up"
            " with the others",
        ),
        {"prefetch_factor": now + more},
    )


def _regular(case: Case, waits: Sequence[float]) -> bool:
    """Whether most waits follow each other within the number of batches that all workers make at once. Workers that are
    always busy may deliver their batches together, so that the loop waits once for each round of them."""
    assert case.basis is not None
    near = max(one.workers * one.steps_per_batch for one in case.basis.trace.ranks)
    at = [index for index, wait in enumerate(waits) if wait > 0]
    close = sum(after - before <= near for before, after in pairwise(at))
    return 2 * close >= len(at) > 1


def _waits(one: RankTrace) -> Sequence[int]:
    """For each step, the ns in which the loop waited for a batch that was being made; 0 if the wait was short."""
    least = REAL * median(step.wall for step in one.steps)
    found = []
    for step in one.steps:
        wait = step.own[_READ] + step.own[_CPU] - step.first  # a worker that gets no CPU is not ahead of the loop
        found.append(wait if wait >= least else 0)
    return found


def _uneven(case: Case) -> Found | None:
    """Workers without samples, while the loop waits for those that have some."""
    idle = max(workers.exhausted(rank.newest) for rank in case.ranks)
    gain = replayed(case, Changes(workers=idle)) if idle else None
    if gain is None:
        return None
    return Found(
        "Divide the samples evenly among the data workers. An IterableDataset that gives each worker whole shards needs"
        " at least as many shards as workers, and shards of equal size",
        replace(at_most(gain, free_cpus(case)), least=0.0),
        (f"{workers.uneven(case.ranks)} in most of the time that the loop waits, and the others make all batches",),
    )


def _decoded_seconds(case: Case) -> float:
    """At most how long a CPU works on a sample, in seconds."""
    samples = sum(rank.samples for rank in case.ranks)
    if not samples:
        return inf
    if case.workers() == 0:
        return sum(rank.data_own_cpu for rank in case.ranks) / samples
    waited = case.seconds("data_read", "data_cpu", "data_queue", "data_handoff")
    busy = case.window * max(1, case.workers() or MOST_WORKERS[-1])
    return busy * case.seconds("data_cpu", "data_queue") / max(waited, 1e-9) / samples


def _decode(case: Case) -> Found | None:
    if _decoded_seconds(case) < DECODED or case.share("data_cpu") < FLOOR / 2:
        return None
    together = (case.workers() or 0) > 1
    if together and mounts.saturated(case.ranks):
        return None  # some workers decode while others read, and reading sets the pace
    part = 1 - _receiving(case)
    cpu, queue = case.share("data_cpu"), part * case.share("data_queue")
    gain = replace(_with_queue(case, "data_cpu", part), least=0.0)  # all of it may be random augmentation
    return Found(
        "Do once, before the training, what is the same for a sample each time (decoding, not random augmentation), and"
        " let the loader read the result",
        untold(gain) if together and workers.wait_for_lock(case.ranks) else gain,
        (
            f"the loop waits for {_makers(case)} on a CPU {percent(cpu)} or {_queues(case)} for one {percent(queue)} of"
            " the time, which includes the time in which batches are collated"
            f"{' and what is not a tensor is pickled' if case.workers() else ''}",
        ),
        besides=case.share("compute_queue") if short_of_cpus(case) else 0.0,  # the loop may queue for CPUs that decode
    )


def _makers(case: Case) -> str:
    if not case.has_loader:
        return "what makes its batches, which is"
    return "batches that it makes itself, while it is" if case.workers() == 0 else "workers that are"


def _queues(case: Case) -> str:
    return "queue" if _makers(case) == "workers that are" else "queues"


def _cache(case: Case) -> Found | None:
    blocked = percent(case.share("data_read"))
    seen = workers.reads_seen(case.ranks)
    if workers.wait_for_lock(case.ranks) or (case.workers() == 0 and not seen):
        return None
    on = {blocked_on(rank.newest, "data") for rank in case.ranks}
    if is_sampled(case.ranks, "data_read") and on <= {"a sleep", "a queue or a lock"}:
        return None  # the loop makes its batches itself, and does not wait for files
    slow = mounts.most_of(case.ranks, "data")
    gain = _copied(case, slow)
    if seen is None and not slow and workers.made_ahead(case.ranks):
        return None
    if seen is False and not slow:
        return Found(
            "If the data workers fetch data over the network, copy it to a local disk before the training. Otherwise"
            " find out what blocks them",
            replace(gain, least=0.0),
            (f"the loop waits for workers that are blocked {blocked} of the time, and they hardly read files",),
        )
    source = f"the data from {listed([by_mount.name(mount) for mount in slow])}" if slow else "the data"
    copies = tuple(
        f"{_pace(mount)} a copy of each GB from {by_mount.name(mount)} takes {time_of(1e9 / mount.rate)}: it saves"
        " nothing if the training reads the data only once"
        for mount in slow
        if mount.floor[1] == 1.0 and mount.rate
    )
    return Found(
        f"Copy {source} to a local disk or into memory before the training, and read it there",
        replace(gain, least=0.0) if copies or not seen else gain,
        (f"the loop waits for {_makers(case)} {workers.blocked_on(case.ranks)} {blocked} of the time", *copies),
    )


def _copied(case: Case, slow: Sequence[mounts.MountAccount]) -> Gain:
    """The gain if reads at these mounts took no time; without any: all reads."""
    if slow and not is_sampled(case.ranks, "data_read"):
        found = replayed(case, Changes(reads=NONE, mounts=tuple(one.key for one in slow)))
        if found is not None:
            return found
    whole = sum(one.seconds("data") for one in mounts.of_ranks(case.ranks))
    part = sum(one.seconds("data") for one in slow) / whole if slow else 1.0
    gain = without(case, "data_read")
    return replace(gain, share=part * gain.share, least=part * gain.least)


def _pace(mount: mounts.MountAccount) -> str:
    if mount.limited_by == mounts.BANDWIDTH:
        return f"at {by_mount.rate_of(mount)}"
    return f"if more readers get no more than {by_mount.size_of(mount.rate or 0.0)}/s,"


def _shards(case: Case) -> Found | None:
    slow = mounts.most_of(case.ranks, "data")
    if not slow and not workers.reads_seen(case.ranks):
        return None  # the counters have the reads of the whole process
    if any(mount.fstype == STORE for mount in slow):
        return None  # a program reads what it has asked a server for in pieces
    size = case.counters.bytes_per_read or (slow[0].call_bytes if slow else None)
    if size is None or not 0 < size < SMALL_READ or case.share("data_read") <= 0:
        return None
    gain = replayed(case, Changes(storage=size / SHARD_READ))
    if gain is None or mounts.full(case.ranks, "data") >= FULL:
        return None
    if not mounts.latent(case.ranks, "data"):
        gain = untold(gain)
    return Found(
        f"Read in pieces of {SHARD_READ >> 20} MiB: store the samples in shards (tar files, say), read each shard from"
        " its beginning to its end, and shuffle in a buffer",
        gain,
        (
            f"a read returns {size / 1024:.0f} KiB on average, and the loop waits for reads"
            f" {percent(case.share('data_read'))} of the time",
            *by_mount.more_readers(case.ranks),
        ),
        {"bytes_per_read": SHARD_READ},
    )


def _handoff(case: Case) -> Found | None:
    """Whoever receives a batch may also queue for a CPU. That is a part of `data_queue`."""
    if case.share("data_handoff") < FLOOR / 2 or any(rank.data_gone for rank in case.ranks) or not case.has_loader:
        return None  # what is left are queues for a CPU, which fewer objects would hardly shorten, or a dead worker
    count = max(rank.newest.words["batch_pieces"][0] for rank in case.ranks)
    if 0 < count < MANY_PIECES:
        return None
    part = _receiving(case)
    return Found(
        "Let the dataset return a few tensors instead of Python objects",
        _with_queue(case, "data_handoff", part),
        (
            f"the loop waits {percent(case.share('data_handoff') + part * case.share('data_queue'))} of the time for"
            " finished batches to reach it: they are pickled, copied or collated on the way"
            f"{f'. A batch has {count} or more tensors or other objects' if count else ''}",
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
    waited for it. None of it is if the run is short of CPUs: a worker may queue for all of a wait then."""
    if case.basis is None or short_of_cpus(case):
        return 0.0
    steps = [step.own for one in case.basis.trace.ranks for step in one.steps]
    ready = sum(own[_QUEUE] for own in steps if own[_READ] + own[_CPU] <= REAL * (own[_QUEUE] + own[_HANDOFF]))
    return ready / max(1, sum(own[_QUEUE] for own in steps))


RULES: tuple[Rule, ...] = (
    Rule(
        "data.workers",
        ("storage", "cpu"),
        "The loop waits for data workers that are blocked or on a CPU, and more workers would find a free CPU. Not if"
        " workers wait for a lock",
        "Increase `num_workers` until more workers save little",
        "Replay with that many workers, which start at each epoch unless the loader keeps them. It assumes that one"
        " worker makes each batch. A mount at its bandwidth is read"
        " no faster, one that is limited by latency in proportion to the workers. Where neither is known, reads do not"
        " slow each other, and for the lower bound they become no faster. At most until all CPUs are busy. Lower bound:"
        " 0 unless several workers were seen to work or read at the same moment",
        "`data_read` and `data_cpu` fall, `data_queue` does not rise",
        _workers,
        removes=("data_read", "data_cpu", "data_queue"),
    ),
    Rule(
        "data.uneven",
        ("storage", "cpu"),
        "Some data workers have yielded all of their part of an IterableDataset in most of the waits",
        "Divide the samples evenly among the workers",
        "Replay in which these workers make batches, too. At most until all CPUs are busy. Lower bound: 0",
        "`data_read` and `data_cpu` fall",
        _uneven,
        removes=("data_read", "data_cpu", "data_queue"),
    ),
    Rule(
        "data.prefetch",
        ("storage", "cpu"),
        "The loop waits in at most a fifth of its steps, and not for each round of its workers. In the others they keep"
        " up. Not if half of the waits are for batches of evaluations",
        "Increase `prefetch_factor` until the batches of all workers together cover the longest wait",
        "Each wait is shorter by workers × additional batches × median step, because a worker starts a batch that much"
        " earlier. Nothing for reads from a mount that is at its bandwidth",
        "fewer steps wait for data",
        _prefetch,
        removes=("data_read", "data_cpu"),
    ),
    Rule(
        "data.decode",
        ("cpu",),
        "The loop waits for workers that compute or queue for a CPU, for at least 100 µs a sample",
        "Decode the samples before the training",
        "Replay without `data_cpu`, and without `data_queue` except in steps whose batch was ready. Lower bound: 0,"
        " because random augmentation stays. Upper bound: without `compute_queue`, too, if the run is short of CPUs",
        "`data_cpu` and `data_queue` are gone",
        _decode,
        removes=("data_cpu", "data_queue"),
    ),
    Rule(
        "data.cache",
        ("storage",),
        "The loop waits for workers that are blocked, and not for a lock",
        "Read the data from a local disk or from memory",
        "Replay without the part of `data_read` that is at these mounts, rank by rank; if no mount is known, without"
        " all of it. This is the gain of storage without delay. Lower bound: 0 if no reads were seen,"
        " or if the mount is at its bandwidth, so that the copy takes as long as reading once",
        "`data_read` falls",
        _cache,
        removes=("data_read",),
    ),
    Rule(
        "data.shards",
        ("storage",),
        "The loop waits for workers that are blocked, not at a mount that is at its bandwidth, and a read returns less"
        " than 128 KiB on average (counted for live ranks of this node)",
        "Store the samples in shards, and read each of them from its beginning to its end",
        "Replay with reads that take bytes per read / 1 MiB of their time, because small reads are mostly latency."
        " Lower bound: 0 unless latency was seen to limit the mount",
        "`data_read` falls, and each read returns more bytes",
        _shards,
        removes=("data_read",),
    ),
    Rule(
        "data.handoff",
        ("host",),
        "The loop waits for finished batches to reach it, and they have at least 16 tensors or other objects, if that"
        " is known",
        "Return tensors rather than Python objects",
        "Replay without `data_handoff`, and without `data_queue` in steps whose batch was ready, because there the loop"
        " gets no CPU to receive it",
        "`data_handoff` falls",
        _handoff,
        removes=("data_handoff", "data_queue"),
    ),
)
