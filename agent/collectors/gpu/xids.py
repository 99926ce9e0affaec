"""Counts XID events, which are errors that the driver reports about a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import c_ulonglong, c_void_p

from ...metrics import gpu as metrics
from ...reading import Reading
from .nvml import (
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    TIMEOUT,
    UNINITIALISED,
    XID_CRITICAL_ERROR,
    EventData,
    Nvml,
    reason_of,
)
from .target import Target, Uninitialised

NUMBERS = 16
"""Maximum number of different XIDs that are counted separately per GPU. Further ones are counted as `other`."""
EVENTS_MOST = 1000
"""Maximum number of events that are read in one round. The rest is read in the next round."""
_CREATE, _REGISTER, _WAIT = "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"

_event = EventData()
_event_at = ctypes.byref(_event)


class XidCounts:
    """The number of events of one GPU, counted by the agent. The counts are also exported while the GPU is lost."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._counts: dict[str, int] = {}

    def add(self, number: int) -> None:
        self._total += 1
        name = str(number)
        if name not in self._counts and len(self._counts) >= NUMBERS:
            name = "other"
        self._counts[name] = self._counts.get(name, 0) + 1

    def report(self, reading: Reading, labels: tuple[str, str]) -> None:
        reading.add(metrics.FAULTS, labels, self._total)
        for name, count in self._counts.items():
            reading.add(metrics.XIDS, (*labels, name), count)


class XidEvents:
    """NVML's event set, with all GPUs that support XID events."""

    def __init__(self, nvml: Nvml):
        self._nvml = nvml
        self._set: c_void_p | None = None
        self._handles: dict[int, str] = {}  # handle of a GPU in the set -> uuid

    def read(self, reading: Reading, targets: Iterable[Target]) -> dict[str, list[int]] | None:
        """The XIDs since the last look, by uuid of the GPUs in the event set. None if they could not be read.

        Raises Uninitialised.
        """
        if self._set is None and not self._open(reading):
            return None
        self._register(reading, targets)
        wait = self._nvml.function(_WAIT, "nvmlEventSetWait")
        if wait is None:
            return None
        found: dict[str, list[int]] = {uuid: [] for uuid in self._handles.values()}
        for _ in range(EVENTS_MOST):
            code = wait(self._set, _event_at, 0)
            if code == TIMEOUT:
                break
            if code == GPU_IS_LOST:  # a set with a lost GPU is of no more use; the next look creates a new one
                self.close()
                break
            if code:
                self._failed(reading, "", _WAIT, code)
                self.close()
                return None
            uuid = self._handles.get(_event.device or 0)
            if uuid is not None and _event.type == XID_CRITICAL_ERROR:
                found[uuid].append(_event.data)
        return found

    def close(self) -> None:
        """Frees the set. Never fails."""
        free = self._nvml.function("nvmlEventSetFree") if self._set else None
        if free is not None:
            free(self._set)
        self.forget()

    def forget(self) -> None:
        """Forgets the set, after NVML was stopped and has freed it."""
        self._set = None
        self._handles = {}

    def _open(self, reading: Reading) -> bool:
        found = c_void_p()
        create = self._nvml.function(_CREATE)
        if create is None:
            return False
        code = create(ctypes.byref(found))
        if code:
            self._failed(reading, "", _CREATE, code)
            return False
        self._set = found
        return True

    def _register(self, reading: Reading, targets: Iterable[Target]) -> None:
        """Adds the GPUs that are not in the set yet: new ones, and those that could not be added before."""
        for target in targets:
            handle = target.handle.value or 0
            if handle in self._handles or not target.asks(_REGISTER):
                continue
            register = self._nvml.function(_REGISTER)
            if register is None:
                return
            code = register(target.handle, c_ulonglong(XID_CRITICAL_ERROR), self._set)
            if not code:
                self._handles[handle] = target.uuid
                continue
            if code in (NOT_SUPPORTED, NO_PERMISSION):
                target.refuse(_REGISTER)
            if code != NOT_SUPPORTED:
                self._failed(reading, target.uuid, _REGISTER, code)

    @staticmethod
    def _failed(reading: Reading, device: str, call: str, code: int) -> None:
        if code == UNINITIALISED:
            raise Uninitialised(call)
        if code in (NOT_SUPPORTED, NO_PERMISSION):
            reading.blind(
                "XID events of GPUs",
                f"the driver refuses them here: {call}: {reason_of(code)}",
                "run the agent where NVML's events are allowed: on the host or in a container with the GPU's device "
                "files, not in a virtual machine with a share of a GPU",
            )
        else:
            reading.error(device, call, reason_of(code))
