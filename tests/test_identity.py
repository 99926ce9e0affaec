"""Who a process is, from the environments that launchers make."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from whyidle.torch_hooks.identity import identify, nvml_uuid, process_start, run_id

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}

RUNS = [
    ({"WHYIDLE_RUN": "mine", "SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "u"}, "mine"),
    ({"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "u"}, "7"),
    ({"TORCHELASTIC_RUN_ID": "u"}, "u"),
    ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "n0-29500"),
    ({"WHYIDLE_RUN": "  ", "TORCHELASTIC_RUN_ID": "u"}, "u"),
]


@pytest.mark.parametrize(("env", "expected"), RUNS)
def test_the_run(env: dict[str, str], expected: str) -> None:
    assert run_id(env) == expected


def test_torchrun() -> None:
    who = identify({**TORCHRUN, "TORCHELASTIC_RUN_ID": "u", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert (who.rank, who.world_size, who.local_rank, who.attempt, who.resumable) == (3, 8, 1, 2, True)


def test_slurm() -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
    assert not identify(env).resumable
    requeued = identify({**env, "SLURM_RESTART_COUNT": "1"})
    assert (requeued.rank, requeued.world_size, requeued.local_rank, requeued.attempt) == (3, 8, 1, 1)
    assert requeued.resumable


def test_nonsense_in_the_environment_is_ignored() -> None:
    who = identify({"RANK": "-1", "WORLD_SIZE": "many", "LOCAL_RANK": ""})
    assert (who.rank, who.world_size, who.local_rank) == (0, 1, 0)


@pytest.mark.ages
def test_the_start_of_this_process_lies_before_now_and_after_its_parents() -> None:
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
        ("", "", ""),  # torch 2.4 does not tell
    ],
)
def test_a_gpu_has_the_uuid_that_nvml_gives_it(uuid: str, visible: str, expected: str) -> None:
    assert nvml_uuid(uuid, {"CUDA_VISIBLE_DEVICES": visible}) == expected
