"""Reads all GPUs at each scrape. Restarts NVML when the driver or the GPUs have changed."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Callable
from ctypes import c_void_p

from ...collector import Options
from ...counters import Accumulator
from ...metrics import gpu as metrics
from ...metrics.ranks import DEVICE_SECONDS
from ...reading import Absent, Reading
from .device import Gpu, Histories, Surroundings
from .idle_compute import IdleCompute
from .nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    RESET_REQUIRED,
    UNINITIALISED,
    Nvml,
    NvmlError,
)
from .presence import driver_gpus, driver_loaded, pci_gpus
from .target import Lost, Target, Uninitialised
from .unhooked import Hooked, normal
from .xids import XidEvents

GPUS_MOST = 64
LOST_AGAIN_SECONDS = 300.0
"""How often NVML is restarted while a GPU is lost: NVML finds a GPU that was reset only when it starts."""
FORGET_SECONDS = 300.0
_DEVICE = DEVICE_SECONDS.labels.index("device")
_COUNT = "nvmlDeviceGetCount_v2"
_HANDLE = "nvmlDeviceGetHandleByIndex_v2"


class GpuFault(Exception):
    """The node has GPUs, but they cannot be read. The message says what to do."""


class GpuCollector:
    """Reads all GPUs. Integrals and counts are kept by uuid until the device is gone, also when NVML is restarted."""

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic):
        self._ledgers = options.ledgers
        self._roots = options.roots
        self._addresses = options.gpus
        self._processes = options.processes
        self._clock = clock
        self._nvml = Nvml()
        self._events = XidEvents(self._nvml)
        self._histories = Histories()
        self._idle_compute = IdleCompute()
        self._unhooked: Accumulator[str] = Accumulator()
        self._node = os.environ.get("WHYIDLE_NODE") or os.environ.get("NODE_NAME") or socket.gethostname()
        self._open = False
        self._opened_at = 0.0
        self._count = 0
        self._listed: tuple[str, ...] = ()
        self._driver = ""
        self._gpus: dict[int, Gpu] = {}
        self._uuids: dict[int, str] = {}  # index -> uuid of the GPU last seen there
        self._lost: set[int] = set()
        self._told: set[str] = set()  # missing symbols that have been reported: each is reported once only

    def collect(self, reading: Reading) -> None:
        if self._open and self._is_stale(reading):
            self._end()
        try:
            self._round(reading)
        except Uninitialised:
            # The driver was reloaded while NVML was open.
            self._end()
            reading.samples.clear()
            reading.errors.clear()
            try:
                self._round(reading)
            except Uninitialised:
                self._end()
                raise

    def _is_stale(self, reading: Reading) -> bool:
        """Whether the driver or the GPUs have changed since NVML was started. NVML itself does not notice that."""
        if self._lost and self._clock() - self._opened_at >= LOST_AGAIN_SECONDS:
            return True
        if driver_gpus(self._roots) != self._listed:
            return True
        try:
            return self._nvml.number(_COUNT) != self._count
        except NvmlError as error:
            if error.code != UNINITIALISED:
                reading.error("", _COUNT, error.reason)
            return error.code == UNINITIALISED

    def _round(self, reading: Reading) -> None:
        now = self._clock()
        if not self._open:
            self._start(now)
        if not self._driver:
            self._find_driver(reading)
        ranks = self._ledgers.latest
        around = Surroundings(
            self._nvml,
            self._clock,
            self._histories,
            Hooked(ranks),
            self._idle_compute,
            self._node,
            self._unhooked,
            self._driver,
            self._of_ranks(),
            self._roots.procfs,
        )
        self._lost.clear()
        for index in range(self._count):
            self._read(reading, index, now, around)
        self._idle_compute.close_round(reading, ranks)
        for cause, total in self._unhooked.items():
            if total:
                reading.add(metrics.UNHOOKED, (self._node, cause), total)
        self._count_events(reading, now)
        self._forget(now)
        for name in self._nvml.missing.keys() - self._told:
            self._told.add(name)
            reading.error("", name, "missing symbol")

    def _of_ranks(self) -> frozenset[int]:
        try:
            return frozenset(pid for one in self._processes.look() for pid in (one.pid, *one.workers))
        except TimeoutError:  # the collector `process` reports it
            return frozenset()

    def _read(self, reading: Reading, index: int, now: float, around: Surroundings) -> None:
        gpu = self._gpus.get(index) or self._find(reading, index)
        if gpu is None:
            return
        try:
            gpu.read(reading, now, around)
            self._addresses.update((normal(uuid), gpu.address) for uuid in gpu.uuids())
        except Lost as lost:
            self._lose(reading, index, gpu.target.uuid, lost.args[1], lost.args[0])

    def _find(self, reading: Reading, index: int) -> Gpu | None:
        """The GPU at an index, or None. A GPU keeps its index until NVML is restarted."""
        handle = c_void_p()
        call = _HANDLE
        try:
            self._nvml.check(call, index, ctypes.byref(handle))
            call = "nvmlDeviceGetUUID"
            uuid = self._nvml.text(call, handle)
        except NvmlError as error:
            if error.code == UNINITIALISED:
                raise Uninitialised(call) from None
            if error.code in (GPU_IS_LOST, RESET_REQUIRED):
                self._lose(reading, index, self._uuids.get(index, ""), call, error.reason)
            else:
                reading.error(self._uuids.get(index) or f"gpu{index}", call, error.reason)
            return None
        self._uuids[index] = uuid
        found = self._gpus[index] = Gpu(Target(self._nvml, handle, str(index), uuid, self._clock), index)
        return found

    def _lose(self, reading: Reading, index: int, uuid: str, call: str, reason: str) -> None:
        """Marks a GPU as lost and removes its other samples. XID counts and the idle compute of its ranks are kept."""
        gpu = str(index)
        self._lost.add(index)
        device = f"cuda:{index}"
        for metric, samples in reading.samples.items():
            if metric is metrics.COMPUTE_IDLE:
                gone = []
            elif metric is DEVICE_SECONDS:
                gone = [labels for labels in samples if f"{labels[_DEVICE]}:".startswith(f"{device}:")]
            else:
                gone = [labels for labels in samples if labels[0] == gpu]
            for labels in gone:
                del samples[labels]
        reading.error(uuid or f"gpu{index}", call, reason)
        reading.add(metrics.LOST, (gpu, uuid), 1)
        found = self._gpus.get(index)
        for known in found.uuids() if found else ():
            self._histories[known].activity.restart()

    def _count_events(self, reading: Reading, now: float) -> None:
        targets = [gpu.target for index, gpu in self._gpus.items() if index not in self._lost]
        for target in targets:
            target.begin(reading, now)
        found = self._events.read(reading, targets)
        if found is None:
            return
        for uuid, numbers in found.items():
            for number in numbers:
                self._histories[uuid].xids.add(number)
        for index, gpu in self._gpus.items():
            if gpu.target.uuid in found or index in self._lost:
                self._histories[gpu.target.uuid].xids.report(reading, gpu.target.labels)

    def _find_driver(self, reading: Reading) -> None:
        call = "nvmlSystemGetDriverVersion"
        try:
            self._driver = self._nvml.text(call)
        except NvmlError as error:
            if error.code == UNINITIALISED:
                raise Uninitialised(call) from None
            reading.error("", call, error.reason)

    def _forget(self, now: float) -> None:
        """Forgets devices that have been gone for a while. If one comes back, its counters start at 0."""
        for uuid in set(self._uuids.values()).union(*(gpu.uuids() for gpu in self._gpus.values())):
            self._histories[uuid].present_at = now
        for uuid in [uuid for uuid, one in self._histories.items() if now - one.present_at > FORGET_SECONDS]:
            self._histories.pop(uuid).activity.release(self._nvml)

    def _start(self, now: float) -> None:
        """Starts NVML. Raises Absent if there are no GPUs, and GpuFault if there are GPUs that cannot be read."""
        had = bool(self._uuids)
        try:
            self._nvml.open()
            count = self._nvml.number(_COUNT)
        except NvmlError as error:
            self._end()
            raise self._explain(error, had) from None
        if not count:
            here = pci_gpus(self._roots)
            self._end()
            if had or here:
                raise GpuFault(
                    f"the driver shows no GPU, but {', '.join(here) or 'there was one'}: see the kernel's log, or let "
                    "the agent's container see the GPUs (NVIDIA_VISIBLE_DEVICES=all)"
                )
            raise Absent("a GPU that the NVIDIA driver knows")
        self._open = True
        self._opened_at = now
        self._count = min(count, GPUS_MOST)
        self._uuids = {index: uuid for index, uuid in self._uuids.items() if index < self._count}
        self._listed = driver_gpus(self._roots)
        self._driver = ""

    def _explain(self, error: NvmlError, had: bool) -> Exception:
        if error.code == LIBRARY_NOT_FOUND:
            if had or driver_loaded(self._roots):
                return GpuFault(
                    f"the NVIDIA driver is loaded, but {error.call} was not found: install it, or add it to the "
                    "agent's container (NVIDIA_DRIVER_CAPABILITIES=utility)"
                )
            return Absent(error.call)
        if error.code == DRIVER_NOT_LOADED and not had and not pci_gpus(self._roots):
            return Absent("an NVIDIA GPU on the PCI bus, or its driver")
        return GpuFault(
            f"{error}: the node's NVIDIA driver does not work; nvidia-smi and the kernel's log have the details"
        )

    def _end(self) -> None:
        """Stops NVML. Integrals are kept. Never fails."""
        if self._open:
            self._events.close()
            for history in self._histories.values():
                history.activity.release(self._nvml)
        self._nvml.close()
        self._gpus.clear()
        self._lost.clear()
        self._open = False
