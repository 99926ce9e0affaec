"""NVML without a GPU: a ``libnvidia-ml.so.1`` that answers from a script, under the real nvidia-ml-py.

    node = Node(tmp_path)                                   # eight H100s, the last in MIG mode
    node.gpu(3, temp=91, power_mw="!15")                    # values; "!code" is an error, None: not supported
    node.level(3, "util", 80)                               # a level from now on; node.advance(10) moves the clock
    node.xid(3, 79); node.lose(3); node.fail("nvmlDeviceGetUUID", 15, gpu=3); node.hang("nvmlDeviceGetUUID")
    subprocess.run(…, env={**os.environ, **node.environment()})
    with node.loaded(): …                                   # or the real binding in this process

The fault matrix: run once, ask ``node.calls()`` which functions it took, then ``fail``, ``hang`` or miss each in turn.

Every change is written at once, in one rename, and the library reads it at its next call. The script has a line
``key value`` for each value: ``driver 1.2`` of the node, ``gpu3.temp 40`` of a GPU, ``gpu.temp 40`` of every GPU that
has no own, ``gpu7.mig0.uuid MIG-…`` of a MIG device. The keys are those of nvml_values. Numbers are plain, or
``base+rate``: a counter that grows by the rate each second of the clock. LEVELS are ``level time:level …``:
utilisation, the sample buffer, PCIe throughput and GPM all derive their means from them. ``field<id>`` and
``field<id>@<scope>`` are field values, ``gpm<id>`` levels of GPM metrics, that have no key of their own. Other lines:
``fail function code [gpu]``, ``hang function [gpu]``, ``event number gpu type data [instance compute-instance]``.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .nvml_values import EVERY_GPU, MIG_MODE, SYSTEM, mig_devices, own

SOURCES = Path(__file__).with_name("nvml")
SONAME = "libnvidia-ml.so.1"
START = 1_700_000_000
"""The time of a new node's clock, in seconds."""
BUILD_DEADLINE_SECONDS = 120
XID = 8
"""The event type of an XID."""

Value = int | float | str | None
LEVELS = ("util", "mem_util", "enc_util", "dec_util", "jpg_util", "ofa_util", "sm", "occupancy", "tensor", "dram")
LEVELS += ("integer", "dfma", "hmma", "dmma", "imma", "fp64", "fp32", "fp16", "pcie_tx", "pcie_rx", "nvlink_tx")
LEVELS += ("nvlink_rx", "power_mw", "clock_sm", "clock_mem")


def _functions() -> tuple[str, ...]:
    pattern = re.compile(r"^(?:API |[A-Z]+\(|const char \*)(nvml[A-Z]\w+)", re.MULTILINE)
    return tuple(sorted(name for path in SOURCES.glob("*.c") for name in pattern.findall(path.read_text())))


FUNCTIONS = _functions()
"""All functions of the library, by their C names."""


def library(missing: Sequence[str] = ()) -> Path:
    """The library, compiled once for these sources. ``missing``: functions that it does not have. Safe in parallel."""
    unknown = set(missing) - set(FUNCTIONS)
    assert not unknown, f"no such functions: {unknown}"
    sources = sorted(SOURCES.glob("*.[ch]"))
    flags = [f"-D{name}=absent_{name}" for name in sorted(missing)]
    digest = hashlib.sha256(b"\0".join([*(path.read_bytes() for path in sources), *(flag.encode() for flag in flags)]))
    folder = Path(tempfile.gettempdir(), f"whyidle-fake-nvml-{os.getuid()}", digest.hexdigest()[:16])
    path = folder / SONAME
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{SONAME}.{os.getpid()}"
    compiled = ["gcc", "-shared", "-fPIC", "-O2", "-pthread", f"-Wl,-soname,{SONAME}", *flags, "-o", str(unfinished)]
    compiled += [*(str(path) for path in sources if path.suffix == ".c"), "-lm"]
    subprocess.run(compiled, check=True, timeout=BUILD_DEADLINE_SECONDS)
    unfinished.replace(path)
    return path


class Node:
    """The script of one node, and the environment in which a process sees it."""

    def __init__(self, directory: Path | str, gpus: int = 8, *, mig: int | None = -1, real_time: bool = False):
        """``mig``: the GPU in MIG mode (-1: the last, None: none). ``real_time``: without a separate clock."""
        self.path = Path(directory, "nvml.script")
        self.calls_path = Path(directory, "nvml.calls")
        self.values: dict[str, str] = {}
        self.clock: float | None = None if real_time else START
        self._faults: list[str] = []
        self._events: list[str] = []
        self._writes = 0
        self.values.update(_node_values(gpus))
        if real_time:
            self.values.update(epoch=str(int(time.time())), boot=str(int(time.time()) - 60))
        if mig is not None and gpus:
            self.values.update(_mig_values(mig % gpus))
        self.write()

    def system(self, **values: Value) -> None:
        """Sets values of the node: driver, nvml, cuda, epoch, boot, process<pid>."""
        self._set("", values)

    def gpu(self, gpu: int | None, **values: Value) -> None:
        """Sets values of a GPU; ``gpu=None``: of every GPU that does not have its own."""
        self._set("gpu." if gpu is None else f"gpu{gpu}.", values)

    def mig(self, gpu: int, mig: int, **values: Value) -> None:
        """Sets values of a MIG device."""
        self._set(f"gpu{gpu}.mig{mig}.", values)

    def level(self, gpu: int, key: str, level: float, mig: int | None = None) -> None:
        """Changes a level from now on. The earlier level stays valid for the time before. Needs a clock."""
        assert self.clock is not None
        assert key in LEVELS or key.startswith("gpm")
        own = f"gpu{gpu}.{key}" if mig is None else f"gpu{gpu}.mig{mig}.{key}"
        before = self.values.get(own) or self.values.get(f"gpu.{key}", "0")
        self.values[own] = f"{before} {self.clock:.6f}:{level:g}"
        self.write()

    def advance(self, seconds: float) -> None:
        """Moves the clock."""
        assert self.clock is not None
        self.clock += seconds
        self.write()

    def add(self, gpu: int) -> None:
        """Adds a GPU. A process sees it when it next initialises NVML."""
        self.values.update(_named(f"gpu{gpu}.", own(gpu)))
        self.write()

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus: "GPU is lost", also after the library is initialised again."""
        self.gpu(gpu, lost=1)

    def find(self, gpu: int) -> None:
        """A lost or removed GPU is present again."""
        self.gpu(gpu, lost=None, removed=None)

    def remove(self, gpu: int) -> None:
        """Removes the GPU: it is lost now, and not counted after the next initialisation of NVML."""
        self.gpu(gpu, removed=1)

    def event(self, gpu: int, kind: int, data: int, instance: int | None = None, compute: int | None = None) -> None:
        """Sends an event to all event sets that have registered for it so far."""
        place = "" if instance is None else f" {instance} {compute or 0}"
        self._events.append(f"event {len(self._events) + 1} {gpu} {kind} {data}{place}")
        self.write()

    def xid(self, gpu: int, code: int, instance: int | None = None, compute: int | None = None) -> None:
        """Sends an XID."""
        self.event(gpu, XID, code, instance, compute)

    def fail(self, function: str, code: int, gpu: int | None = None) -> None:
        """The function returns the code; "*": every function."""
        self._fault(f"fail {function} {code}", gpu)

    def hang(self, function: str, gpu: int | None = None) -> None:
        """The function does not return until `heal`; "*": every function."""
        self._fault(f"hang {function}", gpu)

    def heal(self) -> None:
        """Removes all faults."""
        self._faults.clear()
        self.write()

    def calls(self) -> Counter[str]:
        """How often each function was called, including calls that hang."""
        if not self.calls_path.exists():
            return Counter()
        return Counter(line.split()[0] for line in self.calls_path.read_text().splitlines())

    def forget_calls(self) -> None:
        """Counts from 0."""
        os.truncate(self.calls_path, 0)

    def environment(self, missing: Sequence[str] = (), *, frozen: bool = False, log: bool = True) -> dict[str, str]:
        """The environment with which a subprocess sees this node.

        ``missing``: functions that the library lacks. ``frozen``: the script is read only once (for benchmarks).
        """
        paths = [str(library(missing).parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment = {"LD_LIBRARY_PATH": os.pathsep.join(paths), "FAKE_NVML": str(self.path)}
        if log:
            environment["FAKE_NVML_CALLS"] = str(self.calls_path)
        if frozen:
            environment["FAKE_NVML_FROZEN"] = "1"
        return environment

    @contextlib.contextmanager
    def loaded(self, missing: Sequence[str] = (), *, frozen: bool = False, log: bool = True) -> Iterator[None]:
        """This process sees the node through the real binding. Its library is put where the binding keeps it."""
        import pynvml

        loaded = ctypes.CDLL(str(library(missing)))
        loaded.fake_nvml_reset()
        loaded.fake_nvml_log(os.fsencode(self.calls_path) if log else None)
        loaded.fake_nvml_use(os.fsencode(self.path), frozen)
        real = pynvml.nvmlLib
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib = loaded
        try:
            yield
        finally:
            # Calls that hang, or wait for an event, continue and find the library uninitialised.
            self.heal()
            loaded.fake_nvml_reset()
            loaded.fake_nvml_log(None)
            loaded.fake_nvml_use(None, False)
            pynvml._nvmlGetFunctionPointer_cache.clear()
            pynvml.nvmlLib = real

    def write(self) -> None:
        """Writes the script, in one rename."""
        self._writes += 1
        clock = [] if self.clock is None else [f"clock {self.clock:.6f}"]
        values = [f"{key} {value}" for key, value in self.values.items()]
        # The length differs at each write, because a clock tick and an inode may both be used twice.
        lines = ["#" * (self._writes % 61 + 1), *clock, *values, *self._faults, *self._events, ""]
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text("\n".join(lines))
        unfinished.replace(self.path)

    def _set(self, prefix: str, values: dict[str, Value]) -> None:
        self.values.update(_named(prefix, values))
        self.write()

    def _fault(self, line: str, gpu: int | None) -> None:
        self._faults.append(line if gpu is None else f"{line} {gpu}")
        self.write()


def _node_values(gpus: int) -> dict[str, str]:
    values = {**_named("", SYSTEM), **_named("gpu.", EVERY_GPU)}
    for gpu in range(gpus):
        values.update(_named(f"gpu{gpu}.", own(gpu)))
    return values


def _mig_values(gpu: int) -> dict[str, str]:
    values = _named(f"gpu{gpu}.", MIG_MODE)
    for number, device in enumerate(mig_devices(gpu)):
        values.update(_named(f"gpu{gpu}.mig{number}.", device))
    return values


def _named(prefix: str, values: Mapping[str, Value]) -> dict[str, str]:
    # "-": not supported, even if all GPUs have a value
    return {f"{prefix}{key}": "-" if value is None else str(value) for key, value in values.items()}
