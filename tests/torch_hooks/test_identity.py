"""The identity of a process, from the environments that launchers create."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whyidle.torch_hooks.identity import identify, nvml_uuid, owner_of, process_start, run_id

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}

RUNS = [
    ({"WHYIDLE_RUN": "mine", "SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "u"}, "mine"),
    ({"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "u"}, "7"),
    ({"TORCHELASTIC_RUN_ID": "u"}, "u"),
    ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "n0-29500"),
    ({"WHYIDLE_RUN": "  ", "TORCHELASTIC_RUN_ID": "u"}, "u"),
    ({"FLUX_JOB_ID": "ƒ2abc", "SLURM_JOB_ID": "7"}, "ƒ2abc"),
    ({"SKYPILOT_TASK_ID": "sky-managed-7", "RAY_JOB_ID": "01000000"}, "sky-managed-7"),
    ({"DET_TRIAL_ID": "17", "SLURM_JOB_ID": "7"}, "17"),
    ({"AWS_BATCH_JOB_ID": "ba5e-1#3"}, "ba5e-1"),  # the fourth node of a job
    ({"AWS_BATCH_JOB_ID": "ba5e-1:3"}, "ba5e-1:3"),  # the fourth job of an array
    ({"CLOUD_ML_JOB_ID": "123", "TORCHELASTIC_RUN_ID": "u"}, "123"),
    ({"TRAINING_JOB_NAME": "bert-2026", "TORCHELASTIC_RUN_ID": "u"}, "bert-2026"),
]


@pytest.mark.parametrize(("env", "expected"), RUNS)
def test_reads_the_name_of_the_run(env: dict[str, str], expected: str) -> None:
    assert run_id(env) == expected


class Experiment:
    """What `ray.train.get_context()` and `ray.tune.get_context()` return, and what they raise elsewhere."""

    def __init__(self, name: str | None, trial: str = ""):
        self.name, self.trial = name, trial

    def get_context(self) -> Experiment:
        if self.name is None:
            raise RuntimeError("not in a worker")
        return self

    def get_experiment_name(self) -> str:
        return self.name or ""

    def get_trial_id(self) -> str:
        return self.trial


RAY = {"RAY_JOB_ID": "01000000"}


@pytest.mark.parametrize(
    ("env", "modules", "expected"),
    [
        ({**RAY, **TORCHRUN}, {"ray.train": Experiment("llama")}, "llama"),
        ({**RAY, "SLURM_JOB_ID": "7"}, {"ray.train": Experiment("llama")}, "llama"),
        ({**RAY, "WHYIDLE_RUN": "mine"}, {"ray.train": Experiment("llama")}, "mine"),
        (RAY, {"ray.train": Experiment(None), "ray.tune": Experiment("sweep", "8f3a_00001")}, "sweep-8f3a_00001"),
        (RAY, {"ray.train": Experiment(None)}, "01000000"),
        (RAY, {"ray.train": Experiment(" ")}, "01000000"),
        (RAY, {}, "01000000"),
        ({"SLURM_JOB_ID": "7"}, {"ray.train": Experiment("llama")}, "7"),
    ],
)
def test_a_run_of_ray_is_named_after_its_experiment(
    env: dict[str, str], modules: dict[str, Experiment], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ray.train", "ray.tune"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert identify(env).run == expected


@pytest.mark.parametrize(
    ("program", "expected"),
    [("/work/train.py", "train"), ("-c", "python"), ("-", "python"), ("", "python"), ("-m", "m"), ("--odd.py", "odd")],
)
def test_a_run_without_a_launcher_is_named_after_its_program(
    program: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands would take a name that begins with a dash for an option."""
    monkeypatch.setattr(sys, "argv", [program])
    assert run_id({}) == f"{expected}-{os.getpid()}"


OWNERS = [
    ({"WHYIDLE_OWNER": "me", "POD_NAMESPACE": "ns", "SLURM_JOB_ACCOUNT": "acct"}, "me"),
    ({"POD_NAMESPACE": "ns", "WHYIDLE_NAMESPACE": "other", "SLURM_JOB_ACCOUNT": "acct"}, "ns"),
    ({"WHYIDLE_NAMESPACE": " ns\n", "SLURM_JOB_ACCOUNT": "acct"}, "ns"),
    ({"SLURM_JOB_ACCOUNT": "acct"}, "acct"),
    ({"WHYIDLE_OWNER": "  ", "SLURM_JOB_ACCOUNT": "acct"}, "acct"),
    ({"WHYIDLE_OWNER": "x" * 1000}, "x" * 64),
]


@pytest.mark.parametrize(("env", "expected"), OWNERS)
def test_reads_the_owner(env: dict[str, str], expected: str, tmp_path: Path) -> None:
    assert owner_of(env, str(tmp_path / "absent")) == expected


def test_owner_in_a_pod_is_the_namespace_of_its_service_account(tmp_path: Path) -> None:
    namespace = tmp_path / "namespace"
    namespace.write_text("research\n")
    assert owner_of({"SLURM_JOB_ACCOUNT": "acct"}, str(namespace)) == "research"
    assert owner_of({"WHYIDLE_OWNER": "me"}, str(namespace)) == "me"
    namespace.write_bytes(b"\xff" * 5000)
    assert len(owner_of({}, str(namespace))) == 64
    assert owner_of({"SLURM_JOB_ACCOUNT": "acct"}, str(tmp_path)) == "acct"


def test_owner_outside_of_a_pod_is_the_user(tmp_path: Path) -> None:
    assert owner_of({}, str(tmp_path / "absent")) == pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without a name")
def test_a_user_without_a_name_is_given_as_a_number() -> None:
    code = (
        "import os, pwd\n"
        "from whyidle.torch_hooks.identity import owner_of\n"
        "os.setuid(54321)\n"
        "print(owner_of({}, '/absent'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "54321\n"


def test_reads_the_environment_of_torchrun() -> None:
    who = identify({**TORCHRUN, "TORCHELASTIC_RUN_ID": "u", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert (who.rank, who.world_size, who.local_rank, who.attempt, who.resumable) == (3, 8, 1, 2, True)


def test_reads_the_environment_of_slurm() -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
    assert not identify(env).resumable
    requeued = identify({**env, "SLURM_RESTART_COUNT": "1"})
    assert (requeued.rank, requeued.world_size, requeued.local_rank, requeued.attempt) == (3, 8, 1, 1)
    assert requeued.resumable


FLUX = {"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "8", "FLUX_TASK_LOCAL_ID": "1"}
PALS = {"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
"""What a batch script's own task has, and hands on."""


def of_mpi(prefix: str, local: str = "2") -> dict[str, str]:
    names = {"RANK": "3", "SIZE": "8", "LOCAL_RANK": "1", "LOCAL_SIZE": local}
    return {f"{prefix}_{name}": value for name, value in names.items() if value}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (FLUX, (3, 8, 1, 0)),
        ({**FLUX, "PMI_RANK": "3", "PMI_SIZE": "8"}, (3, 8, 1, 0)),
        ({**FLUX, "PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0", "PALS_LOCAL_SIZE": "1"}, (3, 8, 1, 0)),  # its broker's
        ({**PALS, "PMI_RANK": "3", "PMI_SIZE": "8"}, (3, 8, 1, 2)),
        (of_mpi("OMPI_COMM_WORLD"), (3, 8, 1, 2)),
        ({**of_mpi("OMPI_COMM_WORLD"), **BATCH}, (3, 8, 1, 2)),
        (of_mpi("MV2_COMM_WORLD"), (3, 8, 1, 2)),
        (of_mpi("JSM_NAMESPACE", ""), (3, 8, 1, 0)),
        (HYDRA, (3, 8, 1, 2)),
        ({**HYDRA, **BATCH}, (3, 8, 1, 2)),
        ({"PMIX_RANK": "3"}, (3, 1, 3, 0)),
        ({"PMIX_RANK": "3", **SLURM}, (3, 8, 1, 0)),  # srun --mpi=pmix
        ({"PMIX_RANK": "3", **BATCH}, (3, 1, 3, 0)),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4", **HYDRA, "PMI_RANK": "1"}, (3, 8, 1, 4)),  # mpiexec starts torchrun
    ],
)
def test_reads_the_place_that_a_launcher_gives(env: dict[str, str], expected: tuple[int, ...]) -> None:
    who = identify(env)
    assert (who.rank, who.world_size, who.local_rank, who.local_world_size) == expected


def test_a_retry_of_aws_batch_is_another_attempt() -> None:
    first, second = (identify({"AWS_BATCH_JOB_ID": "a", "AWS_BATCH_JOB_ATTEMPT": number}) for number in "12")
    assert ((first.attempt, first.resumable), (second.attempt, second.resumable)) == ((0, False), (1, True))


def test_nonsense_in_the_environment_is_ignored() -> None:
    who = identify({"RANK": "-1", "WORLD_SIZE": "many", "LOCAL_RANK": ""})
    assert (who.rank, who.world_size, who.local_rank) == (0, 1, 0)


@pytest.mark.ages
def test_start_of_this_process_is_after_its_parents_start_and_before_now() -> None:
    code = "from whyidle.torch_hooks.identity import process_start; print(process_start()[1])"
    before = time.monotonic_ns()
    child = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    tick = 20_000_000
    assert before - tick <= child <= time.monotonic_ns()
    assert process_start()[1] < before


@pytest.mark.parametrize(
    ("uuid", "visible", "expected"),
    [
        ("5a1e-2", "", "GPU-5a1e-2"),
        ("5a1e-2", "0,1", "GPU-5a1e-2"),
        ("5a1e-2", "MIG-5a1e-2", "MIG-5a1e-2"),
        ("GPU-5a1e-2", "", "GPU-5a1e-2"),
        ("", "", ""),  # torch 2.4 does not report it
    ],
)
def test_a_gpu_has_the_uuid_that_nvml_gives_it(uuid: str, visible: str, expected: str) -> None:
    assert nvml_uuid(uuid, {"CUDA_VISIBLE_DEVICES": visible}) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (os.fsencode("é").decode("ascii", "surrogateescape"), "é"),
        ("x" * 200, "x" * 128),
        ("a\nb", "a�b"),
        ("a`b", "a'b"),
    ],
    ids=["in a locale without UTF-8", "too long", "not printable", "with a backquote"],
)
def test_names_are_those_that_readers_of_the_ledger_get(name: str, expected: str) -> None:
    who = identify({"WHYIDLE_RUN": name, "WHYIDLE_OWNER": name})
    assert (who.run, who.owner) == (expected, expected[:64])
