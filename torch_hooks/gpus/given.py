"""Which GPUs this process was given, without a call of CUDA or ROCm in it.

cuInit opens the devices, and children that are forked after it cannot use CUDA. So the files of /dev are counted, and
another process asks the runtime.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping

from ..cuda_queries import NoQueries, runtime

VARIABLES: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
NONE = re.compile(r"\s*(-\d.*)?|none|void", re.IGNORECASE)
"""Values with which the runtime shows no device."""
_NVIDIA, _OTHER = re.compile(r"nvidia\d+"), ("kfd", "dxg", "nvmap")
"""Names in /dev of NVIDIA's GPUs, and names that show that there is a GPU of AMD, of WSL or of a Jetson."""
_RENDERS = re.compile(r"renderD\d+")
_DRIVERS: Mapping[str, str] = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}
_MOST_ENVIRONMENT = 1 << 20
_ASK = """
import ctypes, sys
runtime, number = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
text = getattr(runtime, sys.argv[2] + "GetErrorString")
text.restype = ctypes.c_char_p
error = getattr(runtime, sys.argv[2] + "GetDeviceCount")(ctypes.byref(number))
print(number.value * (error == 0), text(error).decode() * (error != 0))
"""


def nodes(dev: str = "/dev") -> int:
    """How many GPUs of NVIDIA or AMD the process may open. access(2) also asks its control group for devices."""
    found = [name for name in _names(dev) if _NVIDIA.fullmatch(name)]
    if not found and _may_open(f"{dev}/kfd"):
        found = [f"dri/{name}" for name in _names(f"{dev}/dri") if _RENDERS.fullmatch(name)]
    return sum(_may_open(f"{dev}/{name}") for name in found)


def may_have_gpus(dev: str = "/dev") -> bool:
    """Whether the runtime is worth asking: there is a device, or the driver is where the runtime looks first."""
    if nodes(dev) or any(os.path.exists(f"{dev}/{name}") for name in _OTHER):
        return True
    try:
        path, prefix = runtime()
    except NoQueries:
        return False
    beside = [os.path.dirname(path), *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return any(folder and os.path.exists(f"{folder}/{_DRIVERS[prefix]}") for folder in beside if prefix == "cuda")


def has_none(now: Mapping[str, str] = os.environ) -> bool:
    """Whether Slurm says that the job was given no GPU."""
    return now.get("CUDA_VISIBLE_DEVICES") == "NoDevFiles"


def hidden(now: Mapping[str, str] = os.environ) -> str:
    """The variable that hides all GPUs; empty if none does."""
    return next((name for name in VARIABLES if name in now and NONE.fullmatch(now[name])), "")


def was_hidden(name: str) -> bool:
    """Whether a variable hid all GPUs when the program began: not the program hides them, but the job."""
    process = sys.modules.get("multiprocessing.process")
    parent = process.parent_process() if process is not None else None  # a rank of `spawn` has its program's variables
    found = _environment(parent.pid if parent is not None else os.getpid()).get(name)
    return found is not None and NONE.fullmatch(found) is not None


def allocated(env: Mapping[str, str] = os.environ) -> int:
    """How many GPUs the scheduler says that it gave to this job on this node; 0 if it does not say."""
    # Images of CUDA have the value `all`, which says nothing.
    of_pod = [one for one in env.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if one.startswith(("GPU-", "MIG-"))]
    of_slurm = env.get("SLURM_GPUS_ON_NODE", "")
    return len(of_pod) or (int(of_slurm) if of_slurm.isdecimal() else 0)


class Question:
    """Asks the runtime that torch has loaded for its devices, in another process. Raises NoQueries or OSError.

    ``without``: a variable that the other process does not get.
    """

    def __init__(self, without: str = ""):
        path, prefix = runtime()
        if not sys.executable:
            raise NoQueries("there is no interpreter to ask with")
        self._process = subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", _ASK, path, prefix),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != without},
        )

    def answer(self) -> tuple[int, str] | None:
        """The number of devices, and the runtime's own words if there is none. None: it has not answered yet."""
        if self._process.poll() is None or self._process.stdout is None:
            return None
        with self._process.stdout as pipe:
            number, _, error = pipe.read(4096).decode(errors="replace").strip().partition(" ")
        return (int(number), error) if number.isdecimal() else (0, "")

    def give_up(self) -> None:
        self._process.kill()
        self._process.poll()


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _may_open(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _environment(pid: int) -> dict[str, str]:
    """The variables with which a process began; empty if they cannot be read."""

    def pairs() -> Iterator[tuple[str, str]]:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read(_MOST_ENVIRONMENT).decode(errors="replace").split("\0"):
                name, _, value = entry.partition("=")
                yield name, value

    try:
        return dict(pairs())
    except OSError:
        return {}
