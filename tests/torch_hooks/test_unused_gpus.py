"""Why a rank uses no GPU: the files of /dev, the environment, and the words of a runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support_sites import clean_env

from whyidle.torch_hooks.gpus import given

NODES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
PROGRAM = """
import ctypes, json, sys, time, os
from types import SimpleNamespace
directory, dev, library, own = sys.argv[1:]
if library:
    ctypes.CDLL(library)
if own:
    os.environ["CUDA_VISIBLE_DEVICES"] = own.partition("=")[2]
import whyidle
from whyidle.ledger.reader import parse_ledger
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.gpus.unused import UnusedGpus
from whyidle.torch_hooks.machine import PhaseMachine
writer = LedgerWriter(directory, dict(run="r", owner="o", node="n", device="cpu", uuid=""), dict(pid=os.getpid()))
machine = PhaseMachine(writer.words, 0)
machine.steps = 1
probe = UnusedGpus(SimpleNamespace(device=None), machine, dev)
probe.look()
while probe._asked is not None:
    time.sleep(0.01)
    probe.look()
found = parse_ledger(bytes(writer.words), "here", alive=True)
print(json.dumps([found.gpu_unused, found.gpus_visible, found.strings["gpu_error"]]))
"""
RUNTIME = """
int cudaGetDeviceCount(int* count) { *count = COUNT; return ERROR; }
const char* cudaGetErrorString(int error) { return "CUDA driver version is insufficient for CUDA runtime version"; }
"""


def devices(folder: Path, *names: str) -> Path:
    (folder / "dev").mkdir()
    for name in names:
        (folder / "dev" / name).touch()
    return folder / "dev"


def runtime(folder: Path, count: int, error: int) -> str:
    """A runtime of CUDA that gives this answer, beside a driver."""
    (folder / "runtime.c").write_text(RUNTIME)
    (folder / "libcuda.so.1").touch()
    path = folder / "libcudart.so.13"
    define = (f"-DCOUNT={count}", f"-DERROR={error}")
    subprocess.run(("gcc", "-shared", "-fPIC", *define, "-o", path, folder / "runtime.c"), check=True)
    return str(path)


def asked(
    folder: Path, dev: Path, library: str = "", own: str = "", env: Mapping[str, str] | None = None
) -> tuple[str, int, str]:
    """Why a rank on the CPU uses no GPU, how many it was given, and the runtime's words. ``own``: what the program
    sets."""
    (folder / "ledgers").mkdir()
    words = (sys.executable, "-c", PROGRAM, str(folder / "ledgers"), str(dev), library, own)
    done = subprocess.run(words, env=clean_env(**(env or {})), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    index, gpus, error = json.loads(done.stdout)
    from whyidle.ledger.gpus import UNUSED

    return UNUSED[index], gpus, error


def test_a_torch_without_cuda_on_a_node_with_gpus(tmp_path: Path) -> None:
    assert asked(tmp_path, devices(tmp_path, *NODES)) == ("build", 2, "")


def test_a_torch_without_cuda_in_a_container_without_the_devices_that_slurm_gave(tmp_path: Path) -> None:
    assert asked(tmp_path, devices(tmp_path), env={"SLURM_GPUS_ON_NODE": "4"}) == ("build", 4, "")


def test_gpus_that_are_visible(tmp_path: Path) -> None:
    dev = devices(tmp_path, *NODES)
    assert asked(tmp_path, dev, runtime(tmp_path, 2, 0)) == ("model", 2, "")


def test_a_driver_that_refuses_is_told_in_its_own_words(tmp_path: Path) -> None:
    why, gpus, error = asked(tmp_path, devices(tmp_path, *NODES), runtime(tmp_path, 0, 35))
    assert (why, gpus) == ("driver", 2)
    assert error == "CUDA driver version is insufficient for CUDA runtime version"


def test_a_node_without_gpus_hears_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path, devices(tmp_path), runtime(tmp_path, 0, 35)) == ("", 0, "")


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_variable_of_the_job_hides_all_gpus(tmp_path: Path, value: str) -> None:
    dev = devices(tmp_path, *NODES)
    found = asked(tmp_path, dev, runtime(tmp_path, 2, 0), env={"CUDA_VISIBLE_DEVICES": value})
    assert found == ("hidden", 2, "")


def test_a_program_that_hides_the_gpus_wants_the_cpu(tmp_path: Path) -> None:
    dev = devices(tmp_path, *NODES)
    assert asked(tmp_path, dev, runtime(tmp_path, 2, 0), own="CUDA_VISIBLE_DEVICES=") == ("", 0, "")


def test_a_job_of_slurm_without_gpus_hears_nothing(tmp_path: Path) -> None:
    dev = devices(tmp_path, *NODES)
    found = asked(tmp_path, dev, runtime(tmp_path, 0, 100), env={"CUDA_VISIBLE_DEVICES": "NoDevFiles"})
    assert found == ("", 0, "")


def test_gpus_that_were_allocated_and_are_not_there(tmp_path: Path) -> None:
    library = runtime(tmp_path, 0, 35)
    (tmp_path / "libcuda.so.1").unlink()
    found = asked(tmp_path, devices(tmp_path), library, env={"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2"})
    assert found == ("absent", 2, "")


def test_counts_the_gpus_of_amd(tmp_path: Path) -> None:
    dev = devices(tmp_path, "kfd")
    (dev / "dri").mkdir()
    for name in ("card0", "renderD128", "renderD129"):
        (dev / "dri" / name).touch()
    assert given.nodes(str(dev)) == 2


@pytest.mark.parametrize(
    ("env", "gpus"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 0),  # set by images of CUDA
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, 0),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-11,MIG-12"}, 2),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({}, 0),
    ],
)
def test_what_a_scheduler_has_allocated(env: dict[str, str], gpus: int) -> None:
    assert given.allocated(env) == gpus
