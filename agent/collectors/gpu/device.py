"""Reads one GPU and its MIG devices."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_uint, c_void_p
from dataclasses import dataclass, field

from ...counters import Accumulator
from ...metrics import gpu as metrics
from ...reading import Reading
from .activity import Activity
from .fields import Batch
from .idle_compute import IdleCompute
from .idle_difference import ActivityPoints
from .nvlinks import NvLinks
from .nvml import ARCHITECTURES, NOT_FOUND, Nvml, PciInfo, clean
from .others import Others
from .plain import INSTEAD, read_memory, read_one, read_plain, read_processes, read_reasons
from .target import Target
from .unhooked import Hooked, Unhooked
from .utilisation import Increase
from .xids import XidCounts

LOOK_AGAIN_SECONDS = 10.0
"""How often the MIG mode and the MIG devices of a GPU are read."""
MIG_MOST = 64
SAMPLED_SECONDS = 30.0
"""The longest interval between two looks that counts for a throttle reason. In a longer one, it may have come and gone.
"""


@dataclass(slots=True)
class History:
    """What is remembered about one GPU or MIG device while it exists. Restarts of NVML do not lose it."""

    activity: Activity = field(default_factory=Activity)
    unhooked: Unhooked = field(default_factory=Unhooked)
    points: ActivityPoints = field(default_factory=ActivityPoints)
    xids: XidCounts = field(default_factory=XidCounts)
    others: Others = field(default_factory=Others)
    throttled: dict[str, float] = field(default_factory=dict)  # reason -> seconds, for reasons without a counter
    read_at: float | None = None
    present_at: float = 0.0


class Histories(dict[str, History]):
    """Histories by uuid. Creates missing ones."""

    def __missing__(self, uuid: str) -> History:
        self[uuid] = history = History()
        return history


@dataclass(slots=True)
class Surroundings:
    """What all devices of one round share."""

    nvml: Nvml
    clock: Callable[[], float]
    histories: Histories
    hooked: Hooked
    idle_compute: IdleCompute
    node: str
    unhooked: Accumulator[str]
    """Device-seconds of all devices of the node without a ledger, by cause."""
    driver: str = ""
    of_ranks: frozenset[int] = frozenset()
    """The pids of all ranks and their descendants."""
    procfs: str = "/proc"

    def split_unhooked(
        self,
        target: Target,
        device: str,
        increase: Increase | None,
        processes: int | None,
        used: int | None,
        *,
        hooked: bool,
    ) -> None:
        """Splits the time of a device since the last look, if it has no ledger."""
        history = self.histories[target.uuid].unhooked
        history.read(target, self.node, device, increase, processes, used, hooked=hooked, of_node=self.unhooked)


def _compare(target: Target, history: History, increase: Increase | None, around: Surroundings) -> None:
    """Compares a device's activity with the ledger of the rank that uses it alone, if there is one.

    ``increase`` is the activity since the last look, or None if it is not known.
    """
    seen = increase or Increase()
    history.points.add(target.now, seen.busy, seen.observed)
    ledger = around.hooked.only(target.uuid)
    if ledger is not None:
        gpm = history.activity.uses_gpm(target)
        around.idle_compute.read(target.reading, history.points, ledger, gpm=gpm)


class Mig:
    """A MIG device. Reads its memory, its processes and, through GPM, its activity."""

    def __init__(self, target: Target, device: str, instance: int, alone: bool, info: tuple[str, ...]):
        self.target = target
        self.device = device
        self.info = info
        self.alone = alone  # the only MIG device of its GPU instance; GPM measures GPU instances
        self.instance = instance

    def read(self, parent: Target, around: Surroundings) -> None:
        target = self.target
        target.begin(parent.reading, parent.now)
        history = around.histories[target.uuid]
        target.reading.add(metrics.MIG_INFO, self.info, 1)
        used = read_memory(target, mig=True)
        processes = read_processes(target)
        increase = history.activity.read(target, parent, self.instance) if self.alone else None
        hooked = around.hooked.has(target.uuid) or around.hooked.has(parent.uuid)
        around.split_unhooked(target, self.device, increase, processes, used, hooked=hooked)
        _compare(target, history, increase, around)


class Gpu:
    """A GPU and its handle, which is valid until NVML is restarted."""

    def __init__(self, target: Target, index: int):
        self.target = target
        self.index = index
        self._batch = Batch(target)
        self._nvlinks = NvLinks(target)
        self._static: dict[str, str] = {}
        self._migs: list[Mig] = []
        self._mig = ""  # "enabled", "disabled", or "" if the GPU does not support MIG
        self._look_at = 0.0

    def uuids(self) -> set[str]:
        return {self.target.uuid, *(mig.target.uuid for mig in self._migs)}

    def read(self, reading: Reading, now: float, around: Surroundings) -> None:
        """Adds all samples except those of XID events. Raises Lost and Uninitialised."""
        target = self.target
        target.begin(reading, now)
        history = around.histories[target.uuid]
        if now >= self._look_at:
            self._look(around)
        self._inform(around)
        whole = self._mig != "enabled"
        known = self._batch.read(pcie=whole and not history.activity.uses_gpm(target))
        for metric, row in INSTEAD.items():
            if metric not in known:
                read_one(target, row)
        read_plain(target)
        used = read_memory(target)
        processes = read_processes(target)
        self._throttle(history, known_reasons=read_reasons(target))
        if whole:
            self._nvlinks.read()  # MIG devices cannot use NVLink
            increase = history.activity.read(target)
            hooked = around.hooked.has(target.uuid)
            around.split_unhooked(target, f"cuda:{self.index}", increase, processes, used, hooked=hooked)
            _compare(target, history, increase, around)
            if hooked and around.of_ranks:
                history.others.read(target, around.of_ranks, around.procfs)
        for mig in self._migs:
            mig.read(target, around)
        if self._migs and any(error.device.startswith("MIG-") for error in reading.errors):
            self._look_at = 0.0  # the MIG devices may have changed
        reading.add(metrics.LOST, target.labels, 0)
        history.read_at = now

    @property
    def address(self) -> str:
        """Its PCI address; empty if it is not known."""
        return self._static.get("pci", "")

    def _inform(self, around: Surroundings) -> None:
        target, static = self.target, self._static
        if len(static) < 3:
            if "model" not in static and (model := target.text("nvmlDeviceGetName")):
                static["model"] = model
            if "pci" not in static and (pci := self._pci()):
                static["pci"] = pci
            if "architecture" not in static and (number := target.number("nvmlDeviceGetArchitecture")) is not None:
                static["architecture"] = ARCHITECTURES.get(number, "")
        labels = (
            *target.labels,
            static.get("pci", ""),
            static.get("model", ""),
            static.get("architecture", ""),
            around.driver,
            self._mig,
        )
        target.reading.add(metrics.INFO, labels, 1)

    def _pci(self) -> str:
        """The PCI address as sysfs writes it: in lower case, with a domain of four digits where four are enough."""
        target, call, found = self.target, "nvmlDeviceGetPciInfo_v3", PciInfo()
        function = target.function(call)
        if function is None or not target.answered(function(target.handle, ctypes.byref(found)), call):
            return ""
        address = clean(found.bus_id).lower()
        return address[4:] if address.startswith("0000") and len(address) > 12 else address

    def _look(self, around: Surroundings) -> None:
        """Reads the MIG mode and finds the MIG devices."""
        target = self.target
        self._look_at = target.now + LOOK_AGAIN_SECONDS
        call = "nvmlDeviceGetMigMode"
        function = target.function(call)
        current, pending = c_uint(), c_uint()
        if function is None or not target.answered(
            function(target.handle, ctypes.byref(current), ctypes.byref(pending)), call
        ):
            if not target.asks(call):
                self._mig, self._migs = "", []
            return
        self._mig = "enabled" if current.value else "disabled"
        self._migs = self._divide(around) if current.value else []

    def _divide(self, around: Surroundings) -> list[Mig]:
        target, call = self.target, "nvmlDeviceGetMigDeviceHandleByIndex"
        function = target.function(call)
        if function is None:
            return []
        known = {mig.target.uuid: mig for mig in self._migs}
        found: list[Mig] = []
        for number in range(min(target.number("nvmlDeviceGetMaxMigDeviceCount") or 0, MIG_MOST)):
            handle = c_void_p()
            code = function(target.handle, number, ctypes.byref(handle))
            if code == NOT_FOUND or not target.answered(code, call):
                continue
            mig = self._identify(Target(around.nvml, handle, target.labels[0], target.uuid, around.clock), number)
            if mig is not None:
                found.append(known.get(mig.target.uuid, mig))
        instances = [mig.instance for mig in found]
        for mig in found:
            mig.alone = instances.count(mig.instance) == 1
        return found

    def _identify(self, mig: Target, number: int) -> Mig | None:
        """Reads the identity of a MIG device. Returns None if it cannot be identified."""
        parent = self.target
        mig.begin(parent.reading, parent.now)
        uuid = mig.text("nvmlDeviceGetUUID")
        instance = mig.number("nvmlDeviceGetGpuInstanceId")
        compute = mig.number("nvmlDeviceGetComputeInstanceId")
        if not uuid or instance is None:
            return None
        profile = mig.text("nvmlDeviceGetName").rpartition("MIG ")[2]
        mig.uuid, mig.labels = uuid, (parent.labels[0], uuid)
        info = (*parent.labels, uuid, profile, str(instance), "" if compute is None else str(compute))
        return Mig(mig, f"cuda:{self.index}:{number}", instance, True, info)

    def _throttle(self, history: History, known_reasons: int | None) -> None:
        """Adds the seconds of reasons without a counter. A reason that is set now counts since the last look. A reason
        that was never seen has no series."""
        target = self.target
        if known_reasons is None:
            return
        elapsed = 0.0 if history.read_at is None else target.now - history.read_at
        counted = target.reading.series(metrics.THROTTLED)
        for throttle in metrics.THROTTLES:
            if throttle.bit is None or (throttle.field is not None and self._batch.has(throttle.field)):
                continue
            total = history.throttled.get(throttle.reason, 0.0)
            if known_reasons & throttle.bit and elapsed <= SAMPLED_SECONDS:
                total += elapsed
            history.throttled[throttle.reason] = total
            if total:
                counted[(*target.labels, throttle.reason, "sampled")] = total
