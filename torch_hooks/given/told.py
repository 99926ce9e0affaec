"""What the environment and torch say about the CPUs and threads of a rank. Read once."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

_FIRST_NUMBER = re.compile(r"[0-9]{1,5}")
_NODES = re.compile(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?")
"""The CPUs of one node, or of several after one another."""


def launcher(environ: Mapping[str, str]) -> str:
    """What limits the job: one of LAUNCHERS; empty if it does not tell."""
    if "SLURM_JOB_ID" in environ:
        return "slurm"
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    return "docker" if os.path.exists("/.dockerenv") else ""


def launcher_cpus(environ: Mapping[str, str]) -> int:
    """The CPUs that Slurm has given to the task, or to the job on this node, as in `16(x2),8`; 0: it does not say."""
    if "SLURM_CPUS_PER_TASK" in environ:
        found = _FIRST_NUMBER.match(environ["SLURM_CPUS_PER_TASK"])
        return int(found[0]) if found else 0
    place = environ.get("SLURM_NODEID", "0")
    before = int(place) if place.isdecimal() else 0
    for cpus, nodes in _NODES.findall(environ.get("SLURM_JOB_CPUS_PER_NODE", "")):
        before -= int(nodes or 1)
        if before < 0:
            return int(cpus)
    return 0


def threads(environ: Mapping[str, str]) -> dict[str, int]:
    """Word -> value. The training thread must call it: OpenMP keeps the number of threads per thread."""
    torch, omp = sys.modules.get("torch"), _FIRST_NUMBER.match(environ.get("OMP_NUM_THREADS", ""))
    return {
        "threads_intra": torch.get_num_threads() if torch is not None else 0,
        "threads_inter": torch.get_num_interop_threads() if torch is not None else 0,
        "threads_omp": int(omp[0]) if omp else 0,
    }
