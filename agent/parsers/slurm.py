"""Finds the Slurm job of a process, from the environment and the cgroup that Slurm has set.

The environment is weaker evidence: a process can change it, and a shell on a login node can have the environment of an
allocation. A process cannot change its cgroup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_JOB_ID = "SLURM_JOB_ID"
_DESCRIBED_BY: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cluster", ("SLURM_CLUSTER_NAME",)),
    ("job_name", ("SLURM_JOB_NAME",)),
    ("user", ("SLURM_JOB_USER",)),
    ("account", ("SLURM_JOB_ACCOUNT",)),
    ("partition", ("SLURM_JOB_PARTITION",)),
    ("qos", ("SLURM_JOB_QOS",)),
    ("array_job_id", ("SLURM_ARRAY_JOB_ID",)),
    ("array_task_id", ("SLURM_ARRAY_TASK_ID",)),
    ("step", ("SLURM_STEP_ID", "SLURM_STEPID")),
    ("slurm_node", ("SLURMD_NODENAME",)),
)
"""Fields of a job, and the variables of srun(1) and sbatch(1) that contain them, in order of preference."""

VARIABLES: tuple[str, ...] = (_JOB_ID, *(name for _, names in _DESCRIBED_BY for name in names))

# v1: /slurm/uid_1000/job_42/step_0/task_0, or /slurm_<node>/... with several slurmd on a node;
# v2: /system.slice/slurmstepd.scope/job_42/step_0/user/task_0, or <node>_slurmstepd.scope.
_CGROUP = re.compile(rb"slurm[^/\n]*/(?:uid_\d+/)?job_(\d{1,12})(?:/step_([a-z0-9_+]{1,24}))?(?=[/\n]|$)", re.ASCII)


class SlurmJob(NamedTuple):
    """A Slurm job, in the order of the labels of its metric. Unknown fields are empty."""

    cluster: str = ""
    job_id: str = ""
    job_name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    array_job_id: str = ""
    array_task_id: str = ""
    step: str = ""  # a number, batch, extern or interactive
    slurm_node: str = ""
    evidence: str = "environment"  # or "cgroup" if the cgroup confirms the job


def slurm_job(environment: Mapping[str, str], cgroup: bytes) -> SlurmJob | None:
    """The job of the process with this environment and this ``/proc/<pid>/cgroup``, or None."""
    claimed = environment.get(_JOB_ID, "")
    if not claimed.isdecimal():
        claimed = ""
    found = _CGROUP.search(cgroup)
    if not found:
        return SlurmJob(job_id=claimed, **_described(environment)) if claimed else None
    job_id = found[1].decode()
    # If the environment names another job, its other variables do not describe this job.
    described = _described(environment) if claimed == job_id else {}
    if found[2]:
        described["step"] = found[2].decode()
    return SlurmJob(job_id=job_id, **described, evidence="cgroup")


def _described(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        what: next((environment[name] for name in names if name in environment), "") for what, names in _DESCRIBED_BY
    }
