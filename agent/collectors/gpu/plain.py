"""Reads values that need one call each: clocks, temperature, links, memory, processes, and power on old drivers."""

from __future__ import annotations

import ctypes
from ctypes import c_uint, c_ulonglong
from typing import NamedTuple

from ...metrics import gpu as metrics
from ...metrics.metric import Metric
from .nvml import INSUFFICIENT_SIZE, MEMORY_V2, Memory, MemoryV2
from .target import Target

_SM, _MEMORY = 1, 2  # nvmlClockType_t
_CHIP = 0  # nvmlTemperatureSensors_t
_NO_STATE = 32  # nvmlPstates_t: unknown
_PROCESSES_MOST = 65536
SEEN_BYTES = 256 << 20
"""A GPU with at least this much memory in use is in use: a CUDA context takes more, an unused GPU has less in use."""

_number = c_uint()
_number_at = ctypes.byref(_number)
_bits = c_ulonglong()
_bits_at = ctypes.byref(_bits)
_memory_v2 = MemoryV2()
_memory_v2_at = ctypes.byref(_memory_v2)
_memory = Memory()
_memory_at = ctypes.byref(_memory)


class Plain(NamedTuple):
    """A call that returns one unsigned number. ``kind`` is its argument, if it takes one."""

    metric: Metric
    call: str
    kind: int | None = None
    most: int = 1 << 31  # larger values are read errors
    key: str = ""  # the key under which it is remembered that the device does not support this


def _plain(metric: Metric, call: str, kind: int | None = None, most: int = 1 << 31) -> Plain:
    return Plain(metric, call, kind, most, call if kind is None else f"{call}/{kind}")


PLAIN: tuple[Plain, ...] = (
    _plain(metrics.CLOCK_SM, "nvmlDeviceGetClockInfo", _SM, 100_000),
    _plain(metrics.CLOCK_MEMORY, "nvmlDeviceGetClockInfo", _MEMORY, 100_000),
    _plain(metrics.CLOCK_SM_MAX, "nvmlDeviceGetMaxClockInfo", _SM, 100_000),
    _plain(metrics.CLOCK_MEMORY_MAX, "nvmlDeviceGetMaxClockInfo", _MEMORY, 100_000),
    _plain(metrics.TEMPERATURE, "nvmlDeviceGetTemperature", _CHIP, 1000),
    _plain(metrics.PSTATE, "nvmlDeviceGetPerformanceState", None, _NO_STATE - 1),
    _plain(metrics.PCIE_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration", None, 100),
    _plain(metrics.PCIE_GENERATION_MAX, "nvmlDeviceGetMaxPcieLinkGeneration", None, 100),
    _plain(metrics.PCIE_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth", None, 1000),
    _plain(metrics.PCIE_WIDTH_MAX, "nvmlDeviceGetMaxPcieLinkWidth", None, 1000),
)
INSTEAD: dict[Metric, Plain] = {
    metrics.POWER: _plain(metrics.POWER, "nvmlDeviceGetPowerUsage", None, 100_000_000),
    metrics.POWER_LIMIT: _plain(metrics.POWER_LIMIT, "nvmlDeviceGetEnforcedPowerLimit", None, 100_000_000),
}
"""For drivers before R530, which do not have fields for these metrics."""


def read_plain(target: Target) -> None:
    for row in PLAIN:
        read_one(target, row)


def read_one(target: Target, row: Plain) -> None:
    metric, call, kind, most, key = row
    if not target.asks(key):
        return
    function = target.nvml.function(call)
    if function is None:
        return
    code = function(target.handle, _number_at) if kind is None else function(target.handle, kind, _number_at)
    if code:
        target.answered(code, call, key)
        return
    raw = _number.value
    if raw <= most:
        target.reading.add(metric, target.labels, metric.base(raw))
    elif not (metric is metrics.PSTATE and raw == _NO_STATE):
        target.garbage(call)


def read_memory(target: Target, *, mig: bool = False) -> int | None:
    """Adds the samples of memory. Returns the bytes in use, without the driver's reserve, or None if not known."""
    call = "nvmlDeviceGetMemoryInfo_v2"
    function = target.function(call)
    if function is None:
        return _read_old_memory(target, mig=mig)
    _memory_v2.version = MEMORY_V2 | ctypes.sizeof(MemoryV2)
    if not target.answered(function(target.handle, _memory_v2_at), call):
        return None
    total, reserved, used = _memory_v2.total, _memory_v2.reserved, _memory_v2.used
    if not _add_memory(target, call, total, used, mig=mig):
        return None
    if not mig:
        target.reading.add(metrics.MEMORY_RESERVED, target.labels, reserved)
    return used


def _read_old_memory(target: Target, *, mig: bool) -> None:
    """Adds the samples of memory on drivers before R510. There, the memory that the driver reserves counts as used."""
    call = "nvmlDeviceGetMemoryInfo"
    function = target.function(call)
    if function is not None and target.answered(function(target.handle, _memory_at), call):
        _add_memory(target, call, _memory.total, _memory.used, mig=mig)


def _add_memory(target: Target, call: str, total: int, used: int, *, mig: bool) -> bool:
    if used > total or total >= 1 << 60:
        target.garbage(call)
        return False
    target.reading.add(metrics.MIG_MEMORY_TOTAL if mig else metrics.MEMORY_TOTAL, target.labels, total)
    target.reading.add(metrics.MIG_MEMORY_USED if mig else metrics.MEMORY_USED, target.labels, used)
    return True


def read_processes(target: Target) -> int | None:
    """Adds and returns the number of processes that compute on the device. None if it is not known."""
    call = "nvmlDeviceGetComputeRunningProcesses_v3"
    function = target.function(call, "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses")
    if function is None:
        return None
    _number.value = 0
    # Without a buffer for the list, the call returns only the number.
    code = function(target.handle, _number_at, None)
    if code != INSUFFICIENT_SIZE and not target.answered(code, call):
        return None
    found = _number.value
    if found > _PROCESSES_MOST:
        target.garbage(call)
        return None
    target.reading.add(metrics.PROCESSES, target.labels, found)
    return found


def read_reasons(target: Target) -> int | None:
    """The current throttle reasons as a bit mask, or None if they are not known."""
    call = "nvmlDeviceGetCurrentClocksEventReasons"
    function = target.function(call, "nvmlDeviceGetCurrentClocksThrottleReasons")  # its name before R535
    if function is None or not target.answered(function(target.handle, _bits_at), call):
        return None
    return _bits.value
