"""Advice on what the run was given: CPUs, threads and memory. It is cheaper than what else would help then."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from signal import SIGBUS

from ...ledger.failures import failure_of
from ...ledger.programs import WORKERS
from ...ledger.reader import Ledger
from ...verdict import workers
from ...verdict.ends import counted, dead_worker
from ...verdict.given import REFAULTED, Cpus
from ...verdict.shortage import OTHERS, used_by_others
from ..whatif.changes import Changes
from .case import Case
from .gains import fewest_workers, formula, percent, replayed
from .options import setting
from .rule import FLOOR, NOT, Found, Gain, Rule

QUEUED = 0.05
"""CPUs are short if the loop waited at least this share of the time for whoever queued for a CPU, or queued itself."""
HALF = 0.5
"""The lower bound of a gain by fewer queues, as a part of the gain: CPUs that all are used are each a bit slower."""
ENOUGH = 0.9
"""The advised CPUs serve this part of what would be used."""
_READS = ("data_read", "data_cpu", "data_queue")
_OWN_QUEUES = ("data_queue", "compute_queue")
REREAD = 0.7
"""The part of the waits for batches that is taken to be for files that are read again. The rest decodes them."""
_MOST_WORKERS = 16
"""At most this number of additional workers is tried together with more CPUs."""
_GIB, _STEP = 1 << 30, 1 << 28


def _without_queues(case: Case) -> Gain:
    """The gain if nobody queued for a CPU: neither data workers nor communication threads nor the training thread."""
    own = replayed(case, Changes(causes=_OWN_QUEUES)) or formula(case.share(*_OWN_QUEUES))
    more, (late, latest) = case.share("collective_queue"), _late_launches(case)
    share = min(1.0, own.share + more)
    most = min(1.0, max(own.most, case.share(*_OWN_QUEUES)) + more + latest)
    return Gain(min(1.0, share + (late + latest) / 2), HALF * share + late, most, own.how if share else "formula")


def _late_launches(case: Case) -> tuple[float, float]:
    """The least and the largest share of the time in which GPUs had no work because their hosts queued for a CPU.

    A host that queues launches that much later. Nobody knows which of it the GPU had work for.
    """
    least = most = 0.0
    for rank in (one for one in case.ranks if one.newest.device != "cpu" and one.counted > 0):
        idle, queued = rank.gaps or 0.0, rank.wall * min(1.0, rank.cpu_queued / rank.counted)
        least, most = least + max(0.0, idle + queued - rank.wall), most + min(idle, queued)
    return least / case.window, most / case.window


def hosts_queue(case: Case) -> bool:
    """Whether GPUs may wait for hosts that queue for a CPU."""
    return _late_launches(case)[1] >= QUEUED


def _own_queues(case: Case) -> float:
    """The share of the time in which the loop waited for its own threads, and these queued for a CPU."""
    return case.share("compute_queue", "collective_queue") + _late_launches(case)[1]


def _queued(case: Case) -> float:
    """The share of the time in which somebody of the run queued for a CPU while the loop waited for it."""
    return case.share("data_queue") + _own_queues(case)


def _shortest(case: Case) -> Cpus | None:
    """The CPUs of the node on which they are shortest. None if no node uses up what it was given."""
    short = [one for one in case.given.cpus if one.short]
    return max(short, key=lambda one: (one.used or 0.0) / one.limit, default=None)


def _worst(case: Case) -> Cpus | None:
    """The same. None if nobody waits for a CPU."""
    return _shortest(case) if _queued(case) >= QUEUED else None


def _with_cpus(gain: Gain, one: Cpus, number: float) -> Gain:
    """The gain with this number of CPUs: all CPU time that is used now takes at least its share of them."""
    most = 1 - (one.used or 0.0) / number
    return replace(gain, share=min(gain.share, most), least=min(gain.least, most / 2), most=max(gain.most, most))


def _needed(one: Cpus, gain: Gain) -> float:
    """The number of CPUs that would be used if nobody queued: at most those of the node."""
    return min(float(one.of_node), (one.used or one.limit) / max(1 - gain.share, 0.01))


def _limit(case: Case) -> Found | None:
    one = _worst(case)
    if one is None:
        return _with_more_workers(case)
    gain = _without_queues(case)
    if not one.by or one.waits_for_others or one.loop < one.loop_at_start or gain.share < FLOOR:
        return None
    needed = _needed(one, gain)
    number = ceil(2 * needed) / 2 if one.by_quota else max(one.limit + 1, ceil(ENOUGH * needed))
    number = min(float(one.of_node), number)
    if number <= one.limit:
        return None
    throttled = f", throttled in {one.throttled_periods} of {one.periods} periods" if one.throttled_periods else ""
    queued, own = case.share("data_queue"), _own_queues(case)
    workers = f"{percent(queued)} of the time the loop waits for workers that get no CPU, and " if queued else ""
    return Found(
        f"Give {_whom(one)} {number:g} CPU{'s' * (number != 1)}: {option(one, number)}",
        _with_cpus(gain, one, number),
        (
            f"it may use {one.limit:g} of {one.of_node} CPUs ({one.by}){throttled}, and used {one.used or 0.0:.1f};"
            f" {workers}{percent(own)} of the time the loop waits for its own CPU",
        ),
        {"cpus": number},
    )


def _with_more_workers(case: Case) -> Found | None:
    """The CPUs are used up, but nobody queues: one process makes the batches, and has one CPU for that."""
    one, have = _shortest(case), case.workers()
    if one is None or not one.by or one.waits_for_others or one.loop < one.loop_at_start:
        return None
    if have is None or case.share("data_cpu") < FLOOR:
        return None
    free = int((one.of_node - one.limit) / one.ranks)
    more = fewest_workers(case, range(1, min(free, _MOST_WORKERS) + 1))
    gain = replayed(case, Changes(workers=more)) if more is not None else None
    if more is None or gain is None:
        return None
    number = min(float(one.of_node), ceil(one.limit + more * one.ranks))
    return Found(
        f"Give {_whom(one)} {number:g} CPUs: {option(one, number)}, and set {setting(case, WORKERS, have + more)}",
        gain if have and workers.seen_in_parallel(case.ranks) else replace(gain, least=0.0),
        (
            f"it may use {one.limit:g} of {one.of_node} CPUs ({one.by}), and used {one.used or 0.0:.1f};"
            f" {percent(case.share('data_cpu'))} of the time the loop waits for batches that are made on a CPU, and it"
            f" has {counted(have, 'data worker') if have else 'no data workers'}",
        ),
        {"cpus": number, "num_workers": have + more},
    )


def _whom(one: Cpus) -> str:
    return "the job" if one.ranks == 1 else f"the {one.ranks} ranks of a node together"


def option(one: Cpus, number: float) -> str:
    """How the launcher names it. Slurm counts CPUs of a task: ranks with different CPUs are different tasks."""
    if one.launcher == "slurm":
        apart = one.ranks > 1 and one.allowed > one.loop
        return f"`--cpus-per-task={ceil(number / one.ranks) if apart else ceil(number)}` of srun and sbatch"
    if one.bound and not one.by_quota:
        return "`taskset`, `numactl` or what else binds it to fewer CPUs than its container may use"
    if one.quota_inside and one.by_quota:
        return f"`cpu.max` of {one.by[len('quota of ') :]}"
    if one.launcher == "kubernetes":
        return f"`resources.limits.cpu: {number:g}` of the pod's container"
    if one.launcher == "docker":
        return f"`docker run {f'--cpus={number:g}' if one.by_quota else f'--cpuset-cpus=0-{ceil(number) - 1}'}`"
    return (
        f"`cpu.max` of {one.by[len('quota of ') :]}" if one.by_quota else "`taskset`, `numactl` or what else binds it"
    )


def _affinity(case: Case) -> Found | None:
    one, gain = _narrowed(case) or _worst(case), _without_queues(case)
    if one is None or gain.share < FLOOR:
        return None
    if one.loop < one.loop_at_start:
        how = "keep `os.sched_getaffinity(0)` of its start, and give it to `os.sched_setaffinity(0, …)` later"
        why, number = (
            f"something that the program imports or calls has narrowed it to {counted(one.loop, 'CPU')};"
            f" at the start it was {one.loop_at_start}",
            one.loop_at_start,
        )
    elif 0 < one.workers < one.loop:
        how = "in `worker_init_fn`: `os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))`"
        why, number = (
            "something that the data workers import, or `worker_init_fn`, has narrowed them to CPU"
            f" {one.workers_list}; the loop may use {one.loop}",
            one.loop,
        )
    else:
        return None
    needed = min(float(number), _needed(one, gain))
    return Found(
        f"Let {'the program' if one.loop < one.loop_at_start else 'the data workers'} use all {counted(number, 'CPU')}"
        f" ({how})",
        _with_cpus(gain, one, max(needed, one.used or 0.0)),
        (why,),
        {"cpus": number},
    )


def _others(case: Case) -> Found | None:
    """What the run queues for, other programs use, and no limit that cpu.limit could raise keeps the run from it."""
    one = _worst(case)
    if one is None or (one.by and not one.waits_for_others):
        return None
    if (used := used_by_others(one)) < OTHERS * one.allowed:
        return None
    return Found(
        f"Give {_whom(one)} CPUs that nobody else uses: keep other programs off its node, or bind them to other CPUs",
        _without_queues(case),
        (
            f"other programs use {used:.1f} of the {one.allowed} CPUs that it may use, and"
            f" {percent(_queued(case))} of the time it waits for one",
        ),
    )


def free_cpus(case: Case) -> float:
    """At most the share of the time that is saved if what a run does in turns is done at the same time: all of its CPUs
    are busy then."""
    return 1.0 - min(1.0, max((one.used / one.limit for one in case.given.cpus if one.used), default=0.0))


def short_of_cpus(case: Case) -> bool:
    """Whether the run queues for the CPUs that it was given, so that a queue says nothing about who queues."""
    one = _worst(case)
    return (one is not None and bool(one.by)) or _narrowed(case) is not None


def _narrowed(case: Case) -> Cpus | None:
    """The CPUs of a node on which data workers queue for those that they may use, and the loop may use more."""
    narrow = (one for one in case.given.cpus if 0 < one.workers < one.loop)
    return next(narrow, None) if case.share("data_queue") >= QUEUED else None


def _threads(case: Case) -> Found | None:
    one = next((one for one in case.given.cpus if one.threads > max(one.limit, one.ranks)), None)
    share = case.share("compute_queue", "collective_queue")
    if one is None or share < 2 * QUEUED:
        return _threads_of_workers(case)
    number = max(1, int(one.limit / one.ranks))
    each = one.threads // one.ranks
    if number >= each:
        return None
    return Found(
        f"Set OMP_NUM_THREADS={number} or call `torch.set_num_threads({number})` in each rank (it has {each})",
        Gain(0.4 * share, 0.0, min(1.0, 1.25 * share), "formula"),
        (
            f"{counted(one.ranks, 'rank')} with {each} threads each may use {one.limit:g} CPUs, and their training and"
            f" communication threads queued for one {percent(share)} of the time",
        ),
        {"OMP_NUM_THREADS": number},
    )


def _threads_of_workers(case: Case) -> Found | None:
    """The loop waits for data workers that queue for a CPU, and each of them has many threads."""
    one = next((one for one in case.given.cpus if one.many_worker_threads), None)
    share = case.share("data_queue")
    if one is None or share < 2 * QUEUED:
        return None
    return Found(
        "Let each data worker use one thread: in `worker_init_fn`, call `torch.set_num_threads(1)`,"
        " `cv2.setNumThreads(0)` or what else sets it, or set OMP_NUM_THREADS=1 before they start"
        f" (one has {one.worker_threads} threads)",
        Gain(0.4 * share, 0.0, min(1.0, 1.25 * share), "formula"),
        (
            f"a data worker runs {one.worker_threads} threads, all may use {one.limit:g} CPUs, and the loop waits"
            f" {percent(share)} of the time for workers that get no CPU",
        ),
        {"worker_threads": 1},
    )


def _memory(case: Case) -> Found | None:
    full = [one for one in case.given.memory if one.of != "node" and one.refaults >= REFAULTED * one.limit]
    if not full or case.share(*_READS) < FLOOR:
        return None
    one = max(full, key=lambda one: one.refaults)
    waits = replayed(case, Changes(causes=_READS)) or formula(case.share(*_READS))
    epochs = max(rank.newest.words["loader_starts"][0] for rank in case.ranks)
    files = one.refaults / (epochs - 1) if epochs > 1 else 0.0
    need = max(1.25 * one.limit, 1.1 * (one.used + files)) if files else 1.5 * one.limit
    size = ceil(need / _STEP) * _STEP
    return Found(
        f"Give the job {size / _GIB:g} GiB of memory: {_memory_option(case, size)}",
        Gain(REREAD * waits.share, 0.25 * waits.share, waits.most, waits.how),
        (
            f"{_gib(one.refaults)} GiB of files were dropped from memory and read again: they do not fit beside the"
            f" {_gib(one.used)} GiB that the job uses of {_gib(one.limit)} GiB. The loop waits"
            f" {percent(case.share(*_READS))} of the time for batches",
        ),
        {"memory_bytes": size},
    )


def _shm(case: Case) -> Found | None:
    ended = [rank.newest for rank in case.ranks if rank.newest.shm_bytes]
    full = [one for one in ended if _shm_full(one) or one.dead_worker_signal == SIGBUS]
    if not full:
        return None
    one = min(full, key=lambda one: one.shm_bytes)
    kept = max(0, one.checkpoint_step - one.base_step)
    lost = 1 - min(kept, one.steps) / max(one.steps, 1)
    size = 2 * one.shm_bytes
    return Found(
        f"Give the job {size >> 20} MiB in /dev/shm: {_shm_option(one.strings['launcher'], size)}",
        Gain(lost, 0.0, lost, "formula"),
        (
            f"{dead_worker(one) or f'rank {one.rank} ended because /dev/shm was full'}. Data workers put batches there."
            f" {counted(one.steps - kept, 'step')} since the last checkpoint have to be repeated",
        ),
        {"shm_bytes": size},
    )


def _shm_full(ledger: Ledger) -> bool:
    failure = failure_of(ledger.strings["failure"])
    return failure is not None and failure.reason == "shm"


def _shm_option(launcher: str, size: int) -> str:
    mib = size >> 20
    if launcher == "kubernetes":
        return f"an `emptyDir` with `medium: Memory` and `sizeLimit: {mib}Mi`, mounted there"
    return f"`docker run --shm-size={mib}m`" if launcher == "docker" else f"`mount -o remount,size={mib}m /dev/shm`"


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f}"


def _memory_option(case: Case, size: int) -> str:
    mib = size >> 20
    launcher = next((name for rank in case.ranks if (name := rank.newest.strings["launcher"])), "")
    return {
        "slurm": f"`--mem={mib}M` of srun and sbatch",
        "kubernetes": f"`resources.limits.memory: {mib}Mi` of the pod's container",
        "docker": f"`docker run --memory={mib}m`",
    }.get(launcher, "`memory.max` of its control group")


RULES: tuple[Rule, ...] = (
    Rule(
        "cpu.limit",
        ("cpu",),
        "The run uses the CPUs that affinity or a quota leaves it, the node has more, and the loop waits for whoever"
        " queues for one, or for batches that are made on the only CPU",
        "Give the run more CPUs, by the option of its launcher; in the second case, with more data workers",
        "Replay without `data_queue` and `compute_queue`, and the time without `collective_queue`."
        " On an accelerator: the idle time of the GPU between its kernels, as far as the training thread queued."
        " All CPU time that is used now takes at least its share of the new CPUs. Lower bound: half of it;"
        " of idle time of the GPU, what cannot have been beside its work."
        " In the second case: replay with more workers, as for `data.workers`",
        "the report's line `may use …` has the new number, and `data_queue` and `compute_queue` fall",
        _limit,
        removes=None,
    ),
    Rule(
        "cpu.others",
        ("cpu",),
        "The loop waits for whoever queues for a CPU, and other programs use at least a quarter of the CPUs",
        "Keep other programs off these CPUs",
        "Replay without `data_queue` and `compute_queue`, and the time without `collective_queue`. Lower bound: half of"
        " it; of idle time of the GPU, what cannot have been beside its work",
        "the report's line `may use …` names no other programs, and `data_queue` and `compute_queue` fall",
        _others,
        removes=None,
    ),
    Rule(
        "cpu.affinity",
        ("cpu",),
        "Data workers may use fewer CPUs than the loop, or the program has narrowed its own CPUs, and they are short",
        "Undo what narrows them",
        "As for `cpu.limit`",
        "the report no longer says that the program has narrowed its CPUs, or that data workers may use some alone",
        _affinity,
        removes=None,
    ),
    Rule(
        "cpu.threads",
        ("cpu",),
        "The ranks of a node have more threads of torch than CPUs, and their training threads queue for one. Or each"
        " data worker has at least 6 threads and twice as many as there are CPUs, and workers queue",
        "Set `OMP_NUM_THREADS` to the CPUs of a rank; let data workers use one thread",
        "0.4 of `compute_queue` and `collective_queue`, or of `data_queue`. Bounds: 0 and five quarters of it, because"
        " nobody knows how much of the others' work would be done anyway",
        "`compute_queue` falls",
        _threads,
        removes=None,
    ),
    Rule(
        "memory.limit",
        ("storage", "cpu"),
        "The control group of the run is limited, and files of at least a quarter of the limit were dropped from memory"
        " and read again",
        "Give the run enough memory for the files of an epoch",
        "Replay without the wait for batches, of which 70 % are taken to be reads. Bounds: a quarter, and all of it",
        "the report no longer says that files were read again",
        _memory,
        removes=("data_read", "data_cpu", "data_queue"),
    ),
    Rule(
        "shm.size",
        ("lost",),
        "A rank ended because /dev/shm was full, or a data worker was killed by a bus error, as it is then",
        "Give the run a larger /dev/shm",
        "The share of the steps that no checkpoint has. Lower bound: 0",
        "the run goes on, and the report says nothing of /dev/shm",
        _shm,
        tried=NOT + "ends the run, so there is no time of a batch to compare",
        removes=None,
    ),
)
CPUS = ("cpu.limit", "cpu.others", "cpu.affinity")
"""Those that give the run more CPUs."""
FIRST = tuple(rule.id for rule in RULES if rule.families != ("lost",))
"""These come before advice on batches, because CPUs or memory are what is short."""
