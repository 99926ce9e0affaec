"""The metrics of the collector `gpu`.

Utilisation is integrated over time: a busy second is a second in which a kernel ran. Busy seconds divided by observed
seconds are the utilisation over any window. No source knows *why* a kernel runs: a kernel that spins in a collective
counts as busy too.
"""

from __future__ import annotations

from typing import NamedTuple

from .metric import Metric
from .ranks import RANK
from .runs import RUN_PLACE

GPU = ("gpu", "uuid")
MHZ = 1_000_000

UNHOOKED_CAUSES = ("unhooked_busy", "unhooked_idle", "empty")
"""Causes of `whyidle_device_seconds_total` for GPUs and MIG devices that no live rank's ledger names."""
UNHOOKED_FAMILY = "unhooked"


def _gauge(what: str, unit: str, help_text: str, source: str, *, times: int = 1, per: int = 1) -> Metric:
    return Metric(f"whyidle_gpu_{what}", "gauge", unit, GPU, help_text, source, times=times, per=per)


def _counter(
    what: str,
    unit: str,
    more: tuple[str, ...],
    help_text: str,
    source: str,
    *,
    times: int = 1,
    per: int = 1,
    sparse: bool = False,
) -> Metric:
    name = f"whyidle_gpu_{what}_total"
    return Metric(name, "counter", unit, (*GPU, *more), help_text, source, sparse=sparse, times=times, per=per)


INFO = Metric(
    "whyidle_gpu_info",
    "gauge",
    "info",
    (*GPU, "pci_bus_id", "model", "architecture", "driver", "mig"),
    "Identity of a GPU, to join on; always 1. The label gpu is NVML's index. The label mig "
    "says whether the GPU is partitioned.",
    "nvmlDeviceGetUUID",
)
MIG_INFO = Metric(
    "whyidle_gpu_mig_info",
    "gauge",
    "info",
    (*GPU, "mig_uuid", "profile", "gi", "ci"),
    "Identity of a MIG device, to join on; always 1. The label uuid is that of its GPU. The label "
    "mig_uuid is the uuid that the device's own samples carry.",
    "nvmlDeviceGetMigDeviceHandleByIndex",
)
LOST = _gauge(
    "lost",
    "bool",
    "1 if the driver says that the GPU is lost or needs a reset, otherwise 0. A lost GPU has no other series.",
    "nvmlDeviceGetHandleByIndex_v2",
)

_SAMPLES = "nvmlDeviceGetSamples, or nvmlGpmMetricsGet"
_GPM = "nvmlGpmMetricsGet"
BUSY = _counter(
    "busy_seconds",
    "seconds",
    ("source",),
    "Time in which a kernel ran, integrated: from the driver's buffer of utilisation samples (nvml) or from the GPU's "
    "own counters (gpm, on Hopper and later).",
    _SAMPLES,
)
OBSERVED = _counter(
    "observed_seconds",
    "seconds",
    ("source",),
    "Time for which the GPU's activity is known: divide the busy and active seconds by it. It grows more slowly "
    "than the clock if samples are missing.",
    _SAMPLES,
)
MEMORY_BUSY = _counter(
    "memory_busy_seconds",
    "seconds",
    (),
    "Time in which device memory was read or written, integrated from the driver's buffer of samples.",
    "nvmlDeviceGetSamples",
)
SM_ACTIVE = _counter(
    "sm_active_seconds",
    "seconds",
    (),
    "Share of the SMs that had work, integrated over time. SMs that spin count as working.",
    _GPM,
)
SM_OCCUPANCY = _counter(
    "sm_occupancy_seconds", "seconds", (), "Share of the SMs' warp slots that were in use, integrated over time.", _GPM
)
TENSOR_ACTIVE = _counter(
    "tensor_active_seconds",
    "seconds",
    (),
    "Share of the tensor cores' cycles that did work, integrated over time: the counter that comes closest to "
    "useful work.",
    _GPM,
)
DRAM_ACTIVE = _counter(
    "dram_active_seconds", "seconds", (), "Share of the memory bandwidth in use, integrated over time.", _GPM
)
PCIE_BYTES = _counter(
    "pcie_bytes",
    "bytes",
    ("direction", "source"),
    "Bytes over PCIe, sent by the GPU (tx) or received (rx). The source is gpm (the GPU's own rates, added up "
    "over time) or nvml (a counter of the driver). Absent if the driver only has samples of 20 ms.",
    "nvmlGpmMetricsGet, or nvmlDeviceGetFieldValues",
)

MEMORY_USED = _gauge("memory_used_bytes", "bytes", "Device memory in use by processes.", "nvmlDeviceGetMemoryInfo_v2")
MEMORY_TOTAL = _gauge("memory_total_bytes", "bytes", "Total device memory.", "nvmlDeviceGetMemoryInfo_v2")
MEMORY_RESERVED = _gauge(
    "memory_reserved_bytes",
    "bytes",
    "Device memory that the driver reserves for itself. Absent with drivers that count it as used.",
    "nvmlDeviceGetMemoryInfo_v2",
)
MIG_MEMORY_USED = _gauge(
    "mig_memory_used_bytes", "bytes", "Memory of a MIG device in use by processes.", "nvmlDeviceGetMemoryInfo_v2"
)
MIG_MEMORY_TOTAL = _gauge(
    "mig_memory_total_bytes", "bytes", "Total memory of a MIG device.", "nvmlDeviceGetMemoryInfo_v2"
)
PROCESSES = _gauge(
    "processes",
    "processes",
    "Processes that compute on the device, as far as this agent's PID namespace shows them.",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)
OTHER_BUSY = _counter(
    "other_busy_seconds",
    "seconds",
    ("pid", "uid"),
    "How long a process that belongs to no rank used the multiprocessors of a rank's GPU, by the driver's samples: "
    "its share times the time between scrapes. At most eight processes per GPU. Absent for MIG devices, and where the "
    "driver counts PIDs differently than the agent.",
    "nvmlDeviceGetProcessUtilization",
    sparse=True,
)

_FIELDS = "nvmlDeviceGetFieldValues"
POWER = _gauge("power_watts", "watts", "Power use now.", f"{_FIELDS}, or nvmlDeviceGetPowerUsage", per=1000)
POWER_LIMIT = _gauge(
    "power_limit_watts",
    "watts",
    "The power limit of the GPU. A GPU with a lower limit than the others makes its rank a straggler.",
    f"{_FIELDS}, or nvmlDeviceGetEnforcedPowerLimit",
    per=1000,
)
ENERGY = _counter("energy_joules", "joules", (), "Energy drawn since the driver was loaded.", _FIELDS, per=1000)
CLOCK_SM = _gauge("sm_clock_hertz", "hertz", "Clock of the SMs now.", "nvmlDeviceGetClockInfo", times=MHZ)
CLOCK_MEMORY = _gauge("memory_clock_hertz", "hertz", "Clock of the memory now.", "nvmlDeviceGetClockInfo", times=MHZ)
CLOCK_SM_MAX = _gauge(
    "sm_clock_max_hertz", "hertz", "Highest clock of the SMs.", "nvmlDeviceGetMaxClockInfo", times=MHZ
)
CLOCK_MEMORY_MAX = _gauge(
    "memory_clock_max_hertz", "hertz", "Highest clock of the memory.", "nvmlDeviceGetMaxClockInfo", times=MHZ
)
THROTTLED = _counter(
    "throttled_seconds",
    "seconds",
    ("reason", "evidence"),
    "Time in which the GPU ran with lowered clocks, by reason. The evidence is counter if the driver counts "
    "this time, and sampled if the state at a scrape counts for the time since the last scrape. Reasons overlap. "
    "A reason that has not occurred has no series.",
    f"{_FIELDS}, or nvmlDeviceGetCurrentClocksEventReasons",
    per=1_000_000_000,
    sparse=True,
)
TEMPERATURE = _gauge("temperature_celsius", "celsius", "Temperature of the chip.", "nvmlDeviceGetTemperature")
TEMPERATURE_MEMORY = _gauge("memory_temperature_celsius", "celsius", "Temperature of the memory.", _FIELDS)
PSTATE = _gauge(
    "performance_state",
    "state",
    "Performance state: 0 is fastest, 15 slowest.",
    "nvmlDeviceGetPerformanceState",
)
PCIE_GENERATION = _gauge(
    "pcie_link_generation",
    "generation",
    "Generation that the PCIe link runs at now; an idle GPU lowers it.",
    "nvmlDeviceGetCurrPcieLinkGeneration",
)
PCIE_GENERATION_MAX = _gauge(
    "pcie_link_generation_max",
    "generation",
    "Highest generation that the GPU and its slot support.",
    "nvmlDeviceGetMaxPcieLinkGeneration",
)
PCIE_WIDTH = _gauge(
    "pcie_link_width_lanes",
    "lanes",
    "Lanes that the PCIe link has now. If there are fewer than the maximum, the card is not seated well or the slot "
    "is bad.",
    "nvmlDeviceGetCurrPcieLinkWidth",
)
PCIE_WIDTH_MAX = _gauge(
    "pcie_link_width_max_lanes",
    "lanes",
    "Most lanes that the GPU and its slot support.",
    "nvmlDeviceGetMaxPcieLinkWidth",
)
PCIE_REPLAYS = _counter(
    "pcie_replays", "replays", (), "Packets sent again over PCIe. Growth means a bad link.", _FIELDS
)
NVLINK_BYTES = _counter(
    "nvlink_bytes",
    "bytes",
    ("direction",),
    "Payload over all NVLinks, sent (tx) or received (rx).",
    _FIELDS,
    times=1024,
)
NVLINK_RATE = _gauge(
    "nvlink_rate_bytes_per_second",
    "bytes_per_second",
    "What all active NVLinks of the GPU can carry in one direction, by the speed that the driver reports. On Hopper, "
    "6 % of it is overhead. If it is lower than on GPUs of the same model, a link is down.",
    _FIELDS,
    times=1_000_000,
)
NVLINK_ERRORS = _counter(
    "nvlink_errors",
    "errors",
    ("kind",),
    "Errors on all NVLinks: checksum errors of flits and of data, replays, and recoveries of a link.",
    _FIELDS,
)
ECC_ERRORS = _counter(
    "ecc_errors",
    "errors",
    ("kind", "since"),
    "Memory errors that ECC corrected or could not correct, since the driver was loaded (volatile) or over the life of "
    "the GPU (aggregate).",
    _FIELDS,
)
REMAPPED = Metric(
    "whyidle_gpu_remapped_rows",
    "gauge",
    "rows",
    (*GPU, "kind"),
    "Rows of memory replaced by spare ones, after corrected or uncorrected errors.",
    _FIELDS,
)
REMAP_PENDING = _gauge(
    "row_remap_pending", "bool", "1 if a row will be replaced at the next reset of the GPU, otherwise 0.", _FIELDS
)
REMAP_FAILURE = _gauge(
    "row_remap_failure", "bool", "1 if replacing a row has failed, otherwise 0. Replace the GPU if it is 1.", _FIELDS
)
RETIRED = Metric(
    "whyidle_gpu_retired_pages",
    "gauge",
    "pages",
    (*GPU, "kind"),
    "Pages of memory taken out of use after corrected or uncorrected errors, on GPUs before Ampere.",
    _FIELDS,
)
RETIRED_PENDING = _gauge(
    "page_retirement_pending", "bool", "1 if a page will be taken out of use at the next reset, otherwise 0.", _FIELDS
)
FAULTS = _counter(
    "faults",
    "events",
    (),
    "XID events of any number since the agent started. Starts at 0, so that a rate sees the first one too.",
    "nvmlEventSetWait_v2",
)
XIDS = _counter(
    "xid_events",
    "events",
    ("xid",),
    "XID events by number since the agent started. The first 16 numbers of a GPU are counted separately, all "
    "further ones as other.",
    "nvmlEventSetWait_v2",
)
COMPUTE_IDLE = Metric(
    "whyidle_compute_idle_seconds_total",
    "counter",
    "seconds",
    (*RANK, "evidence"),
    "Part of a rank's compute in which no kernel ran on its GPU: launch gaps, synchronisations, Python between "
    "kernels. It is the idle time of the GPU minus the rank's idle causes. Where GPM does not count it, or the rank "
    "waited in collectives, the rank's own looks at its stream limit it (evidence sampled). The "
    "value is about a minute late. It never includes the "
    "last 15 s of a rank that has ended, nor what came after the agent's last look. Absent where several ranks "
    "share the GPU.",
    "cause_ns, looks, and nvmlDeviceGetSamples or nvmlGpmMetricsGet",
)
COMPUTE_OBSERVED = Metric(
    "whyidle_compute_observed_seconds_total",
    "counter",
    "seconds",
    (*RANK, "source"),
    "Part of a rank's compute for which the GPU's own counters (source gpm) say how long no kernel ran. "
    "whyidle_compute_idle_seconds_total is a part of it. 0 on a GPU without GPM. Absent where several ranks share "
    "the GPU.",
    "cause_ns, and nvmlGpmMetricsGet",
)
RUN_COMPUTE_IDLE = Metric(
    "whyidle_run_compute_idle_seconds_total",
    "counter",
    "seconds",
    (*RUN_PLACE, "evidence"),
    "whyidle_compute_idle_seconds_total of all ranks of a run on this node. It does not fall when a rank ends.",
    "cause_ns, looks, and nvmlDeviceGetSamples or nvmlGpmMetricsGet",
)
UNHOOKED = Metric(
    "whyidle_unhooked_seconds_total",
    "counter",
    "seconds",
    ("node", "cause"),
    "whyidle_device_seconds_total of all GPUs of the node without a ledger. It does not fall when a GPU disappears. A "
    "cause that took no time has no series.",
    "nvmlDeviceGetSamples, or nvmlGpmMetricsGet",
)


class Throttle(NamedTuple):
    """A reason for throttled clocks."""

    reason: str
    field: int | None  # NVML_FI_DEV_PERF_POLICY_*: a counter of ns
    bit: int | None  # nvmlClocksEventReason*


THROTTLES: tuple[Throttle, ...] = (
    Throttle("sw_power_cap", 74, 0x04),
    Throttle("sw_thermal", 75, 0x20),
    Throttle("sync_boost", 76, 0x10),
    Throttle("board_limit", 77, None),
    Throttle("reliability", 79, None),
    # No field numbers: they differ between R570 and R580, and R580 uses the old numbers for other counters.
    Throttle("hw_thermal", None, 0x40),
    Throttle("hw_power_brake", None, 0x80),
)

METRICS: tuple[Metric, ...] = (
    INFO,
    MIG_INFO,
    LOST,
    BUSY,
    OBSERVED,
    MEMORY_BUSY,
    SM_ACTIVE,
    SM_OCCUPANCY,
    TENSOR_ACTIVE,
    DRAM_ACTIVE,
    MEMORY_USED,
    MEMORY_TOTAL,
    MEMORY_RESERVED,
    MIG_MEMORY_USED,
    MIG_MEMORY_TOTAL,
    PROCESSES,
    OTHER_BUSY,
    POWER,
    POWER_LIMIT,
    ENERGY,
    CLOCK_SM,
    CLOCK_SM_MAX,
    CLOCK_MEMORY,
    CLOCK_MEMORY_MAX,
    THROTTLED,
    TEMPERATURE,
    TEMPERATURE_MEMORY,
    PSTATE,
    PCIE_BYTES,
    PCIE_GENERATION,
    PCIE_GENERATION_MAX,
    PCIE_WIDTH,
    PCIE_WIDTH_MAX,
    PCIE_REPLAYS,
    NVLINK_BYTES,
    NVLINK_RATE,
    NVLINK_ERRORS,
    ECC_ERRORS,
    REMAPPED,
    REMAP_PENDING,
    REMAP_FAILURE,
    RETIRED,
    RETIRED_PENDING,
    FAULTS,
    XIDS,
    COMPUTE_IDLE,
    COMPUTE_OBSERVED,
    RUN_COMPUTE_IDLE,
    UNHOOKED,
)
