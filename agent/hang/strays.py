"""Finds ranks without a ledger: processes whose environment says which rank they are.

Only the variables of launchers are taken from an environment.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from ...ledger.launchers import LAUNCHERS, number, place_of
from ...ledger.run_names import RUN_VARIABLES, named_run, run_of_meeting
from ...ledger.text import as_stored
from ..files import Unreadable, names, read
from ..parsers import pidstat
from ..parsers.environ import environ

_JOB = ("FLUX_JOB_ID", "PMIX_NAMESPACE", "PALS_APID", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""They are the same for all ranks that one call of a launcher has started."""
_OF_STEP = "SLURM_STEP_ID"
"""Slurm sets it in the tasks of srun, and not in a batch script, which has the number of one of them."""
_ELASTIC = "TORCHELASTIC_RUN_ID"
VARIABLES = frozenset(
    (
        "MASTER_ADDR",
        "MASTER_PORT",
        _ELASTIC,
        *(name for one in LAUNCHERS for name in one if name),
        *_JOB,
        *RUN_VARIABLES,
    )
)
MOST_PROCESSES = 1 << 16


@dataclass(frozen=True, slots=True)
class Stray:
    """A process that a launcher has started as a rank."""

    pid: int
    rank: int
    world_size: int
    local_world_size: int  # 0: not known
    meeting: str
    """MASTER_ADDR:MASTER_PORT, or what the launcher calls the job: the same for all ranks of a job."""
    parent: int
    run: str = ""
    """The name of its run, as ledgers have it, unless Ray names it; empty if it is not known."""
    by: int = 0
    """Which of LAUNCHERS has numbered it."""
    elastic: bool = False
    """Whether torchrun has started it."""

    @property
    def job(self) -> str:
        """The same for all ranks of a job on this node."""
        return self.meeting or f"of {self.parent}"


def find(procfs: str) -> list[Stray]:
    """The processes that are ranks, without those that they have started themselves, such as data workers."""
    found: dict[int, Stray] = {}
    try:
        pids = [int(entry) for entry in names(procfs) if entry.isdigit()][:MOST_PROCESSES]
    except Unreadable:
        return []
    for pid in pids:
        if pid != os.getpid() and (stray := _stray(procfs, pid)) is not None:
            found[pid] = stray
    # torchrun, for example, may itself be a task of srun. But a rank of srun may also set RANK for what it starts.
    for stray in [*found.values()]:
        parent = found.get(stray.parent)
        if parent is not None and parent.by > stray.by:
            same = not stray.elastic and (parent.rank, parent.world_size) == (stray.rank, stray.world_size)
            found.pop(stray.pid if same else parent.pid, None)
    # A worker has the environment of its rank, and so may a shell that has started it.
    pythons = {pid: one for pid, one in found.items() if "python" in _program(procfs, pid)}
    tops = [stray for stray in (pythons or found).values() if not _same(stray, pythons.get(stray.parent))]
    return sorted(tops, key=lambda stray: (stray.meeting, stray.rank, stray.pid))


def of_jobs(strays: Collection[Stray], pids: Collection[int]) -> list[Stray]:
    """The ranks of all jobs that have one of these processes."""
    jobs = {stray.job for stray in strays if stray.pid in pids}
    return [stray for stray in strays if stray.job in jobs]


def job_of(strays: Collection[Stray], pids: Collection[int] = ()) -> list[Stray]:
    """The ranks of the job that has these processes, or most ranks here, without workers that outlived their rank."""
    if pids:
        strays = of_jobs(strays, pids)
    by_job: dict[tuple[str, int], list[Stray]] = {}
    for stray in strays:
        by_job.setdefault((stray.job, stray.world_size), []).append(stray)
    job = max(by_job.values(), key=len, default=[])
    [(launcher, count)] = Counter(stray.parent for stray in job).most_common(1) or [(0, 0)]
    return [stray for stray in job if stray.parent == launcher] if 2 * count > len(job) else job


def gone(job: Collection[Stray]) -> list[int]:
    """The ranks of a job that should run on this node and have no process.

    Only if the launcher says how many ranks this node has, or if all but one are here.
    """
    if not job:
        return []
    first = min(stray.rank for stray in job)
    have = {stray.rank for stray in job}
    whole = next(iter(job))
    if (local := whole.local_world_size) and local > len(have):
        start = first - first % local
        block = set(range(start, min(start + local, whole.world_size)))
        return sorted(block - have) if have <= block else []  # not if its ranks are spread over nodes in turns
    absent = sorted(set(range(whole.world_size)) - have)
    return absent if len(absent) == 1 and len(have) > 1 else []


def _program(procfs: str, pid: int) -> str:
    try:
        return os.path.basename(os.readlink(f"{procfs}/{pid}/exe"))
    except OSError:
        return ""


def _same(stray: Stray, parent: Stray | None) -> bool:
    return parent is not None and (parent.rank, parent.meeting) == (stray.rank, stray.meeting)


def _stray(procfs: str, pid: int) -> Stray | None:
    try:
        values = environ(read(f"{procfs}/{pid}/environ"), VARIABLES)
        if _OF_STEP not in values:
            values.pop("SLURM_PROCID", None)
        by = next((at for at, one in enumerate(LAUNCHERS) if number(values, (one.rank,), -1) >= 0), None)
        if by is None:
            return None
        parent = pidstat.parse(read(f"{procfs}/{pid}/stat")).parent
    except Unreadable:
        return None
    rank, world, _, local = place_of(values)
    alone = world < 2 and (by > 0 or "WORLD_SIZE" not in values)  # any program may be the only task of a job
    if alone or rank >= world:
        return None
    met = [values.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")]
    meeting = ":".join(met if all(met) else [values[name] for name in _JOB if name in values])
    run = as_stored("run", named_run(values) or run_of_meeting(values))
    return Stray(pid, rank, world, local, meeting, parent, run, by, _ELASTIC in values)
