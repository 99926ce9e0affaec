"""The GPUs of a node."""

from __future__ import annotations

from ..vocabulary import Column, Panel, Section, line, now, query, section, steps, table, trend
from .selection import grows, level, levels, rate, series, total

GPU = "gpu"
NAMED = "GPU {{gpu}}"
THROTTLE_NOISE = 'reason!~"sync_boost"'
NO_GPU = "No GPU on this node"


def sections() -> list[Section]:
    return [
        section("GPUs", line(7, _busy(), _unhooked()), line(7, _throttled(), _clocks(), _power())),
        section(
            "GPUs: memory, links and health",
            line(6, _active(), _dram()),
            line(6, _memory(), _pcie(), _nvlink()),
            line(6, _temperature(), _energy(), _processes()),
            line(6, _xids(), _ecc(), _links()),
            line(7, _remaps(), _narrow()),
            line(7, _identity()),
            line(6, _mig(), _pods()),
            collapsed=True,
        ),
    ]


def _activity(metric: str, legend: str):
    observed = total(GPU, rate("whyidle_gpu_observed_seconds_total"))
    return query(f"{total(GPU, rate(metric))} / ({observed} > 0)", legend)


def _busy() -> Panel:
    return trend(
        "Busy, as the driver sees it",
        "Share of time in which any kernel ran. It refutes nothing by itself: a kernel that spins in a collective is "
        "busy too. Low where the ranks above say compute means launch gaps.",
        _activity("whyidle_gpu_busy_seconds_total", NAMED),
        unit="percentunit",
        nothing=NO_GPU,
        most=1,
    )


def _unhooked() -> Panel:
    return trend(
        "GPUs without a ledger",
        "Device-seconds per second of GPUs that no live rank names: busy and idle under a process without whyidle, or "
        "empty with no process at all.",
        grows("whyidle_device_seconds_total", "cause", "{{cause}}", 'cause=~"unhooked_busy|unhooked_idle|empty"'),
        unit="short",
        nothing=NO_GPU,
    )


def _active() -> Panel:
    observed = rate("whyidle_gpu_observed_seconds_total", 'source="gpm"')
    return trend(
        "SMs and tensor cores in use",
        "Share of the SMs that had work, of their warp slots in use, and of the tensor cores' cycles that did work, "
        "over all GPUs. Tensor activity falls with compute; SMs alone stay high while they spin. Hopper and later.",
        *(
            query(f"sum({rate(metric)}) / (sum({observed}) > 0)", words)
            for metric, words in {
                "whyidle_gpu_sm_active_seconds_total": "SMs",
                "whyidle_gpu_sm_occupancy_seconds_total": "warp slots",
                "whyidle_gpu_tensor_active_seconds_total": "tensor cores",
            }.items()
        ),
        unit="percentunit",
        most=1,
    )


def _dram() -> Panel:
    return trend(
        "Device memory in use, as bandwidth",
        "Share of the memory bandwidth in use (Hopper and later), and share of time in which memory was read or "
        "written at all.",
        grows("whyidle_gpu_dram_active_seconds_total", GPU, NAMED + " bandwidth"),
        grows("whyidle_gpu_memory_busy_seconds_total", GPU, NAMED + " time"),
        unit="percentunit",
        most=1,
    )


def _throttled() -> Panel:
    return trend(
        "Clocks held down",
        "Share of time in which a GPU's clocks were held down, by reason; reasons overlap. A throttled GPU makes its "
        "rank late in compute, and shows as a straggler.",
        grows("whyidle_gpu_throttled_seconds_total", "gpu, reason", NAMED + " {{reason}}", THROTTLE_NOISE),
        unit="percentunit",
        nothing=NO_GPU,
        width=8,
        thresholds=steps(0.1),
        dashed=True,
    )


def _clocks() -> Panel:
    sm = f"max by (gpu) ({series('whyidle_gpu_sm_clock_hertz')})"
    most = f"max by (gpu) ({series('whyidle_gpu_sm_clock_max_hertz')})"
    memory = f"max by (gpu) ({series('whyidle_gpu_memory_clock_hertz')})"
    memory_most = f"max by (gpu) ({series('whyidle_gpu_memory_clock_max_hertz')})"
    return trend(
        "Clocks, of the highest",
        "Clock of the SMs and of the memory now, as a share of the highest. One GPU below its peers under load is "
        "slow; idle GPUs lower theirs.",
        query(f"{sm} / {most}", NAMED + " SMs"),
        query(f"{memory} / {memory_most}", NAMED + " memory"),
        unit="percentunit",
        nothing=NO_GPU,
        width=8,
    )


def _power() -> Panel:
    return trend(
        "Power, and what it is held to",
        "Power drawn now, and the limit. A limit below the peers' makes a slow GPU.",
        level("whyidle_gpu_power_watts", GPU, NAMED),
        level("whyidle_gpu_power_limit_watts", GPU, NAMED + " limit"),
        unit="watt",
        nothing=NO_GPU,
        width=8,
    )


def _memory() -> Panel:
    return trend(
        "Device memory",
        "Memory in use by processes, what the driver keeps to itself, and the most there is. Near the top, the "
        "allocator frees and allocates anew, which stops the device.",
        level("whyidle_gpu_memory_used_bytes", GPU, NAMED),
        query(f"max({series('whyidle_gpu_memory_reserved_bytes')})", "reserved"),
        query(f"max({series('whyidle_gpu_memory_total_bytes')})", "total"),
        unit="bytes",
        width=8,
        dotted=["total"],
    )


def _pcie() -> Panel:
    return trend(
        "PCIe",
        "Bytes per second over PCIe, sent by the GPU (tx) or received (rx). Batches, offloaded state and checkpoints "
        "pass here.",
        grows("whyidle_gpu_pcie_bytes_total", "gpu, direction", NAMED + " {{direction}}"),
        unit="Bps",
        width=8,
    )


def _nvlink() -> Panel:
    return trend(
        "NVLink",
        "Payload per second over all NVLinks of a GPU. One GPU below the others in a collective points to a link.",
        grows("whyidle_gpu_nvlink_bytes_total", "gpu, direction", NAMED + " {{direction}}"),
        unit="Bps",
        width=8,
    )


def _temperature() -> Panel:
    return trend(
        "Temperature",
        "Of the chip and of its memory. Above its limit a GPU throttles.",
        level("whyidle_gpu_temperature_celsius", GPU, NAMED),
        level("whyidle_gpu_memory_temperature_celsius", GPU, NAMED + " memory"),
        unit="celsius",
        width=8,
    )


def _energy() -> Panel:
    return trend(
        "Energy",
        "Joules per second by the GPU's own counter: power with nothing missed between two looks. A GPU that spins "
        "draws less than one that computes.",
        grows("whyidle_gpu_energy_joules_total", GPU, NAMED),
        unit="watt",
        width=8,
    )


def _processes() -> Panel:
    return trend(
        "Processes and performance state",
        "Processes that compute on each GPU, as far as the agent sees them, and its performance state: 0 is fastest, "
        "15 slowest. More than one process shares the GPU.",
        level("whyidle_gpu_processes", GPU, NAMED + " processes"),
        level("whyidle_gpu_performance_state", GPU, NAMED + " state"),
        unit="short",
        width=8,
    )


def _xids() -> Panel:
    return trend(
        "XID events",
        "Events per second by number. 79 is a GPU that fell off the bus, 63 and 64 row remaps, 94 and 95 memory "
        "errors, 74 NVLink, 13, 31 and 43 mostly the program's own faults.",
        grows("whyidle_gpu_xid_events_total", "gpu, xid", NAMED + " XID {{xid}}"),
        grows("whyidle_gpu_faults_total", "instance", "any"),
        unit="ops",
        width=8,
    )


def _ecc() -> Panel:
    return trend(
        "Memory errors",
        "Errors per second that ECC corrected or could not, since the driver was loaded. An uncorrected one kills the "
        "job; many corrected ones come before it.",
        grows("whyidle_gpu_ecc_errors_total", "gpu, kind", NAMED + " {{kind}}", 'since="volatile"'),
        unit="ops",
        width=8,
    )


def _links() -> Panel:
    return trend(
        "Errors on PCIe and NVLink",
        "Packets sent again over PCIe, and errors on NVLinks by kind, per second. Growth means a bad link, and a slow "
        "one.",
        grows("whyidle_gpu_pcie_replays_total", GPU, NAMED + " PCIe replays"),
        grows("whyidle_gpu_nvlink_errors_total", "gpu, kind", NAMED + " NVLink {{kind}}"),
        unit="ops",
        width=8,
    )


def _remaps() -> Panel:
    return trend(
        "Memory that was replaced, or is due to be",
        "Rows remapped and pages retired so far, and whether one is due at the next reset. A failure means that the "
        "GPU is due for exchange.",
        level("whyidle_gpu_remapped_rows", "gpu, kind", NAMED + " rows {{kind}}"),
        level("whyidle_gpu_retired_pages", "gpu, kind", NAMED + " pages {{kind}}"),
        *levels(
            {
                "whyidle_gpu_row_remap_pending": "remap pending",
                "whyidle_gpu_page_retirement_pending": "retirement pending",
                "whyidle_gpu_row_remap_failure": "remap failed",
            }
        ),
        unit="short",
    )


def _narrow() -> Panel:
    lanes = "whyidle_gpu_pcie_link_width_lanes", "whyidle_gpu_pcie_link_width_max_lanes"
    speed = "whyidle_gpu_pcie_link_generation", "whyidle_gpu_pcie_link_generation_max"
    return trend(
        "PCIe links, of what slot and GPU allow",
        "Lanes and generation now, as a share of the most. Fewer lanes are a bad seat or slot; an idle GPU lowers the "
        "generation by itself.",
        *(
            query(f"max by (gpu) ({series(has)}) / max by (gpu) ({series(can)})", f"{NAMED} {words}")
            for (has, can), words in ((lanes, "lanes"), (speed, "generation"))
        ),
        unit="percentunit",
        most=1,
    )


def _identity() -> Panel:
    return table(
        "Identity of GPUs",
        "Which GPUs the node has. The driver, and often the model, should be the same on all nodes of a run.",
        now(series("whyidle_gpu_info")),
        columns=[
            Column("gpu", "GPU", width=60),
            Column("model", "Model"),
            Column("architecture", "Architecture"),
            Column("uuid", "UUID", width=340),
            Column("pci_bus_id", "PCI"),
            Column("driver", "Driver"),
            Column("mig", "MIG"),
        ],
    )


def _mig() -> Panel:
    used, most = "whyidle_gpu_mig_memory_used_bytes", "whyidle_gpu_mig_memory_total_bytes"
    return table(
        "MIG devices",
        "Parts of GPUs, and how much of their memory is in use.",
        now(
            f"max by (uuid) ({series(used)}) / max by (uuid) ({series(most)}) * on (uuid) group_left (gpu, profile) "
            f'max by (uuid, gpu, profile) (label_replace({series("whyidle_gpu_mig_info")}, "uuid", "$1", "mig_uuid", '
            '"(.+)"))'
        ),
        columns=[
            Column("gpu", "GPU", width=60),
            Column("profile", "Profile", width=90),
            Column("uuid", "UUID", width=340),
            Column("A", "Memory in use", "percentunit", cell="gauge", most=1),
        ],
        nothing="No GPU is divided",
        width=10,
    )


def _pods() -> Panel:
    return table(
        "Pods that were given GPUs",
        "The containers that the kubelet gave each GPU or MIG device to.",
        now(series("whyidle_gpu_pod_info")),
        columns=[
            Column("uuid", "UUID", width=340),
            Column("namespace", "Namespace"),
            Column("pod", "Pod"),
            Column("container", "Container"),
            Column("resource", "Resource"),
        ],
        nothing="Not in Kubernetes, or no GPU is given",
        width=14,
    )
