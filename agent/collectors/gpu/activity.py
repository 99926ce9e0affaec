"""Integrates a device's activity, from GPM (Hopper and later) or from the driver's buffer of utilisation samples.

GPM returns the means of the GPU's own counters between two samples that the agent takes. They are exact for any
interval. Reading them does not keep profilers or other tools from using the counters.
"""

from __future__ import annotations

import ctypes
import struct
import time
from ctypes import c_uint, c_ulonglong, c_void_p
from typing import NamedTuple

from ...metrics import gpu as metrics
from ...metrics.metric import Metric
from .nvml import (
    GPU_UTILISATION,
    INSUFFICIENT_SIZE,
    MEMORY_UTILISATION,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    GpmMetric,
    GpmSupport,
    Nvml,
)
from .target import Target, is_ratio
from .utilisation import Increase, SampleIntegral

GPM_SECONDS = 0.1
"""The shortest interval between two GPM samples: the GPU updates its counters in steps."""
GPM_MOST_SECONDS = 600.0
"""The longest interval between two GPM samples. After a longer one, GPM's counters may have wrapped, so the interval is
not observed.
"""
AHEAD_US = 30_000_000
"""Samples have the time of the node's clock. One that is this far in the future is from before the clock was set back.
"""
_ROOM = 256  # samples; the driver keeps about 120
_SAMPLE = struct.Struct("=QQ")  # nvmlSample_t
_DOUBLE = struct.Struct("=d")
_QUAD = struct.Struct("=Q")
_MIB = 1 << 20


class GpmRow(NamedTuple):
    id: int  # NVML_GPM_METRIC_*
    metric: Metric
    labels: tuple[str, ...] = ()
    is_ratio: bool = True  # otherwise MiB/s


GPM: tuple[GpmRow, ...] = (
    GpmRow(1, metrics.BUSY, ("gpm",)),  # GRAPHICS_UTIL: any kernel
    GpmRow(2, metrics.SM_ACTIVE),
    GpmRow(3, metrics.SM_OCCUPANCY),
    GpmRow(5, metrics.TENSOR_ACTIVE),
    GpmRow(10, metrics.DRAM_ACTIVE),
    GpmRow(20, metrics.PCIE_BYTES, ("tx", "gpm"), is_ratio=False),
    GpmRow(21, metrics.PCIE_BYTES, ("rx", "gpm"), is_ratio=False),
)


class GpmQuery(ctypes.Structure):
    """nvmlGpmMetricsGet_t, version 1, only the part that is used"""

    _fields_ = [
        ("version", c_uint),
        ("count", c_uint),
        ("first", c_void_p),
        ("second", c_void_p),
        ("metrics", GpmMetric * len(GPM)),
    ]


_query = GpmQuery(version=1, count=len(GPM))
for _slot, _row in zip(_query.metrics, GPM, strict=True):
    _slot.id = _row.id
_query_at = ctypes.byref(_query)
_samples = ctypes.create_string_buffer(_ROOM * _SAMPLE.size)
_count = c_uint()
_count_at = ctypes.byref(_count)
_kind = c_uint()
_kind_at = ctypes.byref(_kind)


class Activity:
    """The integrals of one device. A restart of NVML keeps them, but loses the samples of GPM.

    For a MIG device, ``instance`` is its GPU instance, and its parent is asked. A device is read from one source at a
    time: from GPM if the device and the library support it.
    """

    __slots__ = ("_gpm", "_gpm_at", "_memory", "_sums", "_utilisation")

    def __init__(self) -> None:
        self._sums: dict[str | int, float] = {}
        self._utilisation = SampleIntegral()
        self._memory = SampleIntegral()
        self._gpm: list[c_void_p] = []  # the previous sample, if there is one, and room for the next
        self._gpm_at: float | None = None

    def restart(self) -> None:
        """Forgets GPM's samples, after NVML was stopped and has freed them."""
        self._gpm = []
        self._gpm_at = None

    def release(self, nvml: Nvml) -> None:
        """Frees GPM's samples, before NVML is stopped or when the device is gone."""
        free = nvml.function("nvmlGpmSampleFree") if self._gpm else None
        for sample in self._gpm:
            if free is not None and sample:
                free(sample)
        self.restart()

    def read(self, target: Target, parent: Target | None = None, instance: int | None = None) -> Increase | None:
        """Adds the samples. Returns the activity since the last look, or None if it is not known."""
        asked = parent or target
        supported = _supports_gpm(target, asked)
        if supported is None:
            return None
        if supported:
            return self._read_gpm(target, asked, instance)
        if instance is not None:  # NVML has no utilisation of MIG devices
            return None
        return self._read_samples(target)

    def uses_gpm(self, target: Target) -> bool:
        return target.asks("gpm")

    def _read_gpm(self, target: Target, asked: Target, instance: int | None) -> Increase | None:
        if not self._gpm and not self._allocate(target):
            return None
        now = target.clock()
        if self._gpm_at is not None and now - self._gpm_at < GPM_SECONDS:
            self._serve_gpm(target)
            return Increase()
        previous, room = self._gpm
        if instance is None:
            call, function = "nvmlGpmSampleGet", target.function("nvmlGpmSampleGet")
            code = function(asked.handle, room) if function else 0
        else:
            call, function = "nvmlGpmMigSampleGet", target.function("nvmlGpmMigSampleGet")
            code = function(asked.handle, instance, room) if function else 0
        if function is None or not self._gpm_answered(target, code, call):
            return None
        before, self._gpm_at = self._gpm_at, target.clock()
        self._gpm = [room, previous]
        if before is None or self._gpm_at - before > GPM_MOST_SECONDS:
            # A MIG device may lack some of GPM's metrics. Which ones is known only after the first evaluation.
            self._serve_gpm(target, first=instance is None)
            return None
        return self._evaluate(target, self._gpm_at - before)

    def _allocate(self, target: Target) -> bool:
        call = "nvmlGpmSampleAlloc"
        function = target.function(call)
        pair: list[c_void_p] = []
        for _ in range(2):
            sample = c_void_p()
            if function is None or not self._gpm_answered(target, function(ctypes.byref(sample)), call):
                free = target.nvml.function("nvmlGpmSampleFree") if pair else None
                if free is not None:
                    free(pair[0])
                return False
            pair.append(sample)
        self._gpm = pair
        return True

    def _evaluate(self, target: Target, seconds: float) -> Increase | None:
        """Adds GPM's means between the previous sample and this one. Returns the activity."""
        call = "nvmlGpmMetricsGet"
        function = target.function(call)
        if function is None:
            return None
        _query.second, _query.first = self._gpm[0], self._gpm[1]
        if not self._gpm_answered(target, function(_query_at), call):
            return None
        increase: Increase | None = None
        for row, slot in zip(GPM, _query.metrics, strict=True):
            key = f"{call}/{row.id}"
            if not target.asks(key) or not target.answered(slot.result, key):
                continue
            value = slot.value
            if row.is_ratio:
                if not is_ratio(value):
                    target.garbage(key)
                    continue
                amount = min(value, 100.0) / 100.0 * seconds
            else:
                if not 0 <= value < 1e9:  # NaN too
                    target.garbage(key)
                    continue
                amount = value * _MIB * seconds
            self._add(target, row, amount)
            if row.metric is metrics.BUSY:
                increase = Increase(amount, seconds)
                self._sums["gpm"] = observed = self._sums.get("gpm", 0.0) + seconds
                target.reading.add(metrics.OBSERVED, (*target.labels, "gpm"), observed)
        return increase

    def _add(self, target: Target, row: GpmRow, amount: float) -> None:
        self._sums[row.id] = total = self._sums.get(row.id, 0.0) + amount
        target.reading.add(row.metric, (*target.labels, *row.labels), total)

    def _serve_gpm(self, target: Target, *, first: bool = False) -> None:
        """Exports the sums unchanged, because there is no earlier sample or too little time has passed."""
        for row in GPM:
            if row.id in self._sums or (first and target.asks(f"nvmlGpmMetricsGet/{row.id}")):
                self._add(target, row, 0.0)
        if 1 in self._sums:
            target.reading.add(metrics.OBSERVED, (*target.labels, "gpm"), self._sums.setdefault("gpm", 0.0))

    @staticmethod
    def _gpm_answered(target: Target, code: int, call: str) -> bool:
        """Like Target.answered. If GPM is not allowed or not supported, the next look uses utilisation samples."""
        if target.answered(code, call):
            return True
        if code == NO_PERMISSION or not target.asks(call):
            target.refuse("gpm")
        return False

    def _read_samples(self, target: Target) -> Increase | None:
        increase = self._sample(target, GPU_UTILISATION, self._utilisation)
        if increase is None:
            return None
        labels = (*target.labels, "nvml")
        self._sums["busy"] = busy = self._sums.get("busy", 0.0) + increase.busy
        self._sums["observed"] = observed = self._sums.get("observed", 0.0) + increase.observed
        target.reading.add(metrics.BUSY, labels, busy)
        target.reading.add(metrics.OBSERVED, labels, observed)
        memory = self._sample(target, MEMORY_UTILISATION, self._memory)
        if memory is not None:
            self._sums["memory"] = total = self._sums.get("memory", 0.0) + memory.busy
            target.reading.add(metrics.MEMORY_BUSY, target.labels, total)
        return increase

    def _sample(self, target: Target, kind: int, integral: SampleIntegral) -> Increase | None:
        """The activity in the new samples of the driver's buffer, or None if the buffer cannot be read."""
        call = "nvmlDeviceGetSamples"
        key = f"{call}/{kind}"
        function = target.nvml.function(call) if target.asks(key) else None
        if function is None:
            return None
        if integral.seen_us - time.time() * 1e6 > AHEAD_US:
            integral.forget_time()
        _count.value = _ROOM
        code = function(target.handle, kind, c_ulonglong(integral.seen_us), _kind_at, _count_at, _samples)
        if code == INSUFFICIENT_SIZE:
            target.garbage(call)
            return None
        if code == NOT_FOUND:  # no new samples
            return Increase()
        if not target.answered(code, call, key):
            return None
        count = min(_count.value, _ROOM)
        raw = memoryview(_samples)[: count * _SAMPLE.size]
        if _kind.value == 1:
            found = [(at, value & 0xFFFFFFFF) for at, value in _SAMPLE.iter_unpack(raw)]
        elif _kind.value == 0:
            found = [(at, _DOUBLE.unpack(_QUAD.pack(value))[0]) for at, value in _SAMPLE.iter_unpack(raw)]
        else:
            found = list(_SAMPLE.iter_unpack(raw))
        increase = integral.add(found)
        if increase.bad:
            target.garbage(call)
        return increase


def _supports_gpm(target: Target, asked: Target) -> bool | None:
    """Whether the device supports GPM. None if the call failed, which is counted as a read error."""
    if not target.asks("gpm"):
        return False
    if not target.asks("gpm known"):
        return True
    call = "nvmlGpmQueryDeviceSupport"
    function = target.nvml.function(call)
    support = GpmSupport(version=1)
    code = NOT_SUPPORTED if function is None else function(asked.handle, ctypes.byref(support))
    if code in (NOT_SUPPORTED, NO_PERMISSION) or not (code or support.supported):
        target.refuse("gpm")
        return False
    if not target.answered(code, call):
        return None
    target.refuse("gpm known")
    return True
