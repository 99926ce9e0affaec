"""The identity of this process: run, rank and attempt from the launcher's environment, its start time from /proc."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..ledger.clock import asleep_ns, signed_ticks
from ..ledger.launchers import LAUNCHERS, knowing, number, place_of
from ..ledger.run_names import named_run, run_of_meeting, run_variable
from ..ledger.text import as_stored
from .notebook import name_of_notebook

RAY = "RAY_JOB_ID"
"""Ray sets it in all processes of a job. It is 01000000 for the first job of each cluster, so the name of the
experiment goes before it, and before the ids of schedulers: one allocation may run several experiments."""

OWNER_VARIABLES = ("WHYIDLE_OWNER", "POD_NAMESPACE", "WHYIDLE_NAMESPACE")
"""Variables with the run's owner, in order of precedence. They go before files and variables that the platform sets."""
_POD_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_SLURM_ACCOUNT = "SLURM_JOB_ACCOUNT"
_OWNER_CHARACTERS = 64

_LOOPBACK = ("127.", "localhost", "::1")


class Meeting(NamedTuple):
    """As which rank a process begins to meet the others, and where."""

    rank: int
    world_size: int
    address: str
    """The host where rank 0 listens; empty: not known."""


_REQUEUES = "SLURM_RESTART_COUNT"
_ATTEMPT = ("TORCHELASTIC_RESTART_COUNT", _REQUEUES)
_ATTEMPT_FROM_1 = "AWS_BATCH_JOB_ATTEMPT"


@dataclass
class Identity:
    run: str
    owner: str
    node: str
    rank: int
    world_size: int
    local_rank: int
    """The rank if a launcher does not tell it."""
    local_world_size: int
    """The number of ranks on this node; 0 if it is not known."""
    attempt: int
    pid: int
    pid_start_ticks: int
    resumable: bool
    """Whether an earlier process with the same run and rank was the same training, not just in the same allocation."""
    start_ns: int
    """When the process started, ns of CLOCK_MONOTONIC."""
    knows_local_rank: bool = False
    named: bool = False
    """Whether a variable names the run, or Ray does."""
    by_port: bool = False
    """Whether the run is named after a port of this machine. Scripts often have a fixed one, so later trainings too."""
    requeues: int = 0
    """How often the scheduler had started the job again."""


def identify(env: Mapping[str, str] | None = None, meeting: Meeting | None = None) -> Identity:
    """Returns the identity of this process. Never raises: values that are not known get a default."""
    env = os.environ if env is None else env
    rank, world_size, local_rank, local_world_size = place_of(env)
    launchers = LAUNCHERS
    if meeting is not None:
        # The environment may be that of a node, of a batch script, or of a parent that has started all ranks.
        if meeting.world_size != world_size or (meeting.rank != rank and _parent() is not None):
            _, _, local_rank, local_world_size = place_of(env, meeting.rank)
            launchers = knowing(env, meeting.rank)
        rank, world_size = meeting.rank, meeting.world_size
        if not local_world_size and meeting.address.startswith(_LOOPBACK):
            local_world_size = world_size
    attempt = number(env, _ATTEMPT, 0) or max(0, number(env, (_ATTEMPT_FROM_1,), 0) - 1)
    ticks, start_ns = process_start()
    experiment = ray_experiment(env)
    return Identity(
        # Compared with the names in other ledgers.
        run=as_stored("run", experiment or run_id(env)),
        owner=as_stored("owner", owner_of(env)),
        node=env.get("WHYIDLE_NODE") or env.get("NODE_NAME") or socket.gethostname(),
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        attempt=attempt,
        pid=os.getpid(),
        pid_start_ticks=ticks,
        # Everything in one allocation has the same scheduler's id. Two trainings, one after the other, are not a
        # restart unless the scheduler counts it as one.
        resumable=attempt > 0 or bool(experiment) or run_variable(env) in ("WHYIDLE_RUN", "TORCHELASTIC_RUN_ID"),
        start_ns=start_ns,
        requeues=number(env, (_REQUEUES,), 0),
        knows_local_rank=number(env, [each.local for each in launchers], -1) >= 0,
        named=bool(experiment) or run_variable(env) is not None,
        by_port=run_variable(env) is None and bool(run_of_meeting(env)) and env["MASTER_ADDR"].startswith(_LOOPBACK),
    )


def meeting_of(env: Mapping[str, str], world_size: int, rank: int, init_method: str) -> Meeting | None:
    """The arguments of `init_process_group`; -1 or empty: not given. None: this process is alone, or it is not known
    which rank it is."""
    known_rank, known_size, *_ = place_of(env)
    if world_size < 0 or rank < 0:
        if world_size not in (-1, known_size) or rank not in (-1, known_rank):
            return None  # the environment is that of a node, or of a batch script
        world_size, rank = known_size, known_rank
    if world_size < 2 or rank >= world_size:
        return None
    address = init_method.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return Meeting(rank, world_size, address if "tcp://" in init_method else env.get("MASTER_ADDR", ""))


def ray_experiment(env: Mapping[str, str]) -> str:
    """The name of the experiment that this worker of Ray trains. In Ray Tune, with the id of the trial. Never raises.

    Empty in other processes, and if WHYIDLE_RUN names the run.
    """
    if RAY not in env or env.get("WHYIDLE_RUN", "").strip():
        return ""
    named = (("ray.train", ("get_experiment_name",)), ("ray.tune", ("get_experiment_name", "get_trial_id")))
    for module, names in named:
        try:
            context = sys.modules[module].get_context()
            said = [getattr(context, name)() for name in names]
        except Exception:  # not imported, or this process does not work for it: each version has its own errors
            continue
        if all(isinstance(one, str) and one.strip() for one in said):
            return "-".join(one.strip() for one in said)
    return ""


def _parent() -> int | None:
    """The pid of the process that has started this one by multiprocessing; None if that is not how it began."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    parent = multiprocessing.parent_process() if multiprocessing else None
    return parent.pid if parent is not None else None


def run_id(env: Mapping[str, str]) -> str:
    if name := named_run(env) or run_of_meeting(env):
        return name
    # Ranks that one Python program starts itself have that program's pid in the name of their run.
    pid = _parent() or os.getpid()
    program = sys.argv[0] if sys.argv else ""
    script = name_of_notebook(env, program) or os.path.splitext(os.path.basename(program))[0]
    # Without a file it is `-c` or `-`. Commands would take a name that begins with a dash for an option.
    return f"{'python' if script in ('', '-c', '-') else script.lstrip('-')}-{pid}"


def owner_of(env: Mapping[str, str], namespace_file: str = _POD_NAMESPACE_FILE) -> str:
    """The owner of the run: the first of WHYIDLE_OWNER, Kubernetes namespace, Slurm account, and user that is known.

    Never raises. At most 64 characters.
    """
    for name in OWNER_VARIABLES:
        if owner := _bounded(env.get(name, "")):
            return owner
    return _namespace(namespace_file) or _bounded(env.get(_SLURM_ACCOUNT, "")) or _user()


def _bounded(text: str) -> str:
    return text.strip()[:_OWNER_CHARACTERS]


def _namespace(path: str) -> str:
    """The namespace of this pod, from the token volume that the kubelet mounts; empty outside a pod."""
    try:
        with open(path, "rb") as file:
            return _bounded(file.read(4 * _OWNER_CHARACTERS).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return ""


def _user() -> str:
    uid = os.geteuid()
    try:
        import pwd

        return _bounded(pwd.getpwuid(uid).pw_name) or str(uid)
    except (ImportError, KeyError, OSError):  # a container often has no entry for its user
        return str(uid)


def process_start() -> tuple[int, int]:
    """When this process started: (clock ticks since boot, ns of CLOCK_MONOTONIC). The resolution is 10 ms."""
    now = time.monotonic_ns()
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        ticks = signed_ticks(int(fields[19]))  # field 22 of proc(5), counted from the state (field 3) as 0
        since_boot = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return ticks, min(now, since_boot - asleep_ns())  # starttime is on CLOCK_BOOTTIME
    except (OSError, ValueError, IndexError, AttributeError):
        return 0, now


def nvml_uuid(uuid: str, env: Mapping[str, str] | None = None) -> str:
    """Converts torch's UUID of a GPU to the form that NVML and other tools use: `GPU-…` or `MIG-…`.

    torch gives only CUDA's 16 bytes. For a MIG device they are the UUID of that device. A process can only get a MIG
    device by that name in CUDA_VISIBLE_DEVICES.
    """
    if not uuid or uuid.startswith(("GPU-", "MIG-")):
        return uuid
    visible = (os.environ if env is None else env).get("CUDA_VISIBLE_DEVICES", "")
    return f"MIG-{uuid}" if visible.strip().startswith("MIG-") else f"GPU-{uuid}"
