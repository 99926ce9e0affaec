"""The device under test: work of a set length, raw events and streams. CUDA (or ROCm), or the simulated device."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

SUPPORT = Path(__file__).resolve().parents[2] / "tests" / "support"


class Rig:
    """One device. All durations are in milliseconds. Raw events around a sleep measure how long it really took."""

    kind = "cuda"

    def __init__(self) -> None:
        self.sim: Any = None
        self.module: Any = torch.cuda
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._rate = self._cycles_per_ms()

    @property
    def simulated(self) -> bool:
        return False

    def sleep(self, ms: float) -> None:
        """Keeps the current stream busy for about ``ms`` milliseconds."""
        if ms > 0:
            torch.cuda._sleep(int(ms * self._rate))

    def _cycles_per_ms(self) -> float:
        torch.cuda._sleep(200_000_000)  # lets the clocks rise
        start, end = self.event(), self.event()
        start.record()
        torch.cuda._sleep(100_000_000)
        end.record()
        torch.cuda.synchronize()
        return 100_000_000 / start.elapsed_time(end)

    def event(self) -> Any:
        """A timing event that whyidle does not see."""
        return self.module.Event(enable_timing=True)

    def mark(self) -> Any:
        """Records an event on the current stream, and returns it."""
        event = self.event()
        event.record(self.module.current_stream())
        return event

    def stream(self) -> Any:
        return self.module.Stream()

    def current_stream(self) -> Any:
        return self.module.current_stream()

    def on(self, stream: Any) -> Any:
        """A context in which ``stream`` is the current one."""
        return self.module.stream(stream)

    def synchronize(self) -> None:
        self.module.synchronize()

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Tells the allocator that another stream uses the memory of a tensor."""
        tensor.record_stream(stream)

    def describe(self) -> dict[str, str]:
        return {
            "device": f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}",
            "driver": _driver(),
            "cuda": str(torch.version.cuda or torch.version.hip),
        }


class SimRig(Rig):
    """The device of `tests/support/simdevice`: virtual time, and threads for streams."""

    kind = "sim"

    def __init__(self) -> None:
        sys.path.insert(0, str(SUPPORT))
        import simdevice

        simdevice.load()
        self.sim = simdevice
        self.module = torch.get_device_module("sim")
        self.device = torch.device("sim", 0)

    @property
    def simulated(self) -> bool:
        return True

    def sleep(self, ms: float) -> None:
        if ms > 0:
            self.sim.occupy(ms)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        pass  # memory is freed in the order of the streams

    def describe(self) -> dict[str, str]:
        return {"device": "simulated (tests/support/simdevice): durations are virtual, host time is real"}


def has_cuda() -> bool:
    return torch.cuda.is_available()


def rig_of(kind: str) -> Rig:
    return SimRig() if kind == "sim" else Rig()


def machine() -> dict[str, Any]:
    """A description of this machine, for the report."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _driver() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.split("\n")[0] or "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown"


class Pairs:
    """Raw event pairs around pieces of work. Read ``total_ms`` only after the device has finished them."""

    def __init__(self, rig: Rig):
        self._rig = rig
        self._pairs: list[tuple[Any, Any]] = []
        self._ends: list[int] = []

    def __enter__(self) -> Pairs:
        self._begun = self._rig.mark()
        return self

    def __exit__(self, *_: object) -> None:
        self._pairs.append((self._begun, self._rig.mark()))

    def add(self, start: Any, end: Any) -> None:
        self._pairs.append((start, end))

    def each_ms(self) -> list[float]:
        return [start.elapsed_time(end) for start, end in self._pairs]

    def total_ms(self) -> float:
        return sum(self.each_ms())

    def next_step(self) -> None:
        """Ends the current step: later pairs belong to the next one."""
        self._ends.append(len(self._pairs))

    def steps_ms(self) -> list[float]:
        """The total milliseconds of each step that has ended."""
        each = self.each_ms()
        return [sum(each[start:end]) for start, end in zip([0, *self._ends], self._ends, strict=False)]

    def clear(self) -> None:
        self._pairs.clear()
        self._ends.clear()
