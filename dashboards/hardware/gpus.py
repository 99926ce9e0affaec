"""The GPUs of a node, one by one."""

from __future__ import annotations

from ..selection import SAMPLED, activity, grows, level, listed, rate, series, total
from ..vocabulary import Column, Panel, Section, line, query, table, trend
from ..vocabulary import section as _section

GPU = "gpu"
NAMED = "GPU {{gpu}}"
NO_GPU = "No GPU on this node"
ERRORS = 5
"""The most kinds of errors in a panel."""


def section() -> Section:
    return _section(
        "GPUs",
        line(9, _tensor(), _memory_bandwidth(), _clocks()),
        line(9, _power(), _temperature(), _memory()),
        line(9, _pcie(), _nvlink(), _errors()),
        line(9, _links(), _repairs()),
        line(9, _identity(), _mig()),
        collapsed=True,
    )


def _tensor() -> Panel:
    return trend(
        "Tensor cores active, by GPU",
        "Share of time in which each GPU's tensor cores did work. A GPU below the others computes less or waits "
        "more. Hopper and later.",
        query(activity("whyidle_gpu_tensor_active_seconds_total", GPU, SAMPLED), NAMED),
        unit="percentunit",
        width=8,
        most=1,
        nothing="No GPU reports this",
    )


def _memory_bandwidth() -> Panel:
    return trend(
        "Device memory busy",
        "Share of the memory bandwidth in use (Hopper and later), and share of time in which memory was read or "
        "written at all.",
        query(activity("whyidle_gpu_dram_active_seconds_total", GPU, SAMPLED), NAMED + " bandwidth"),
        query(activity("whyidle_gpu_memory_busy_seconds_total", GPU), NAMED + " time"),
        unit="percentunit",
        width=8,
        most=1,
        nothing=NO_GPU,
    )


def _clocks() -> Panel:
    clocks = {"sm": "SMs", "memory": "memory"}
    return trend(
        "Clocks, as a share of the highest",
        "Clock of the SMs and of the memory now, as a share of the highest. A GPU that is below the others under "
        "load is slow. Idle GPUs lower their clocks.",
        *(
            query(
                f"max by (gpu) ({series(f'whyidle_gpu_{of}_clock_hertz')})"
                f" / max by (gpu) ({series(f'whyidle_gpu_{of}_clock_max_hertz')})",
                f"{NAMED} {words}",
            )
            for of, words in clocks.items()
        ),
        unit="percentunit",
        width=8,
        nothing=NO_GPU,
    )


def _power() -> Panel:
    energy = total(GPU, rate("whyidle_gpu_energy_joules_total"))
    return trend(
        "Power, and its limit",
        "Power use, from the GPU's own energy counter if it has one, and the power limit. A GPU with a lower "
        "limit than the others is slower. A GPU that spins in a collective draws less than one that computes.",
        query(f"{energy} or max by (gpu) ({series('whyidle_gpu_power_watts')})", NAMED),
        level("whyidle_gpu_power_limit_watts", GPU, NAMED + " limit"),
        unit="watt",
        width=8,
        nothing=NO_GPU,
    )


def _temperature() -> Panel:
    return trend(
        "Temperature",
        "Temperature of the chip and of its memory. A GPU above its limit throttles.",
        level("whyidle_gpu_temperature_celsius", GPU, NAMED),
        level("whyidle_gpu_memory_temperature_celsius", GPU, NAMED + " memory"),
        unit="celsius",
        width=8,
        nothing=NO_GPU,
    )


def _memory() -> Panel:
    return trend(
        "Device memory",
        "Memory that processes use, memory that the driver reserves, and the total. Near the total, the "
        "allocator has to free memory first, which stops the device.",
        level("whyidle_gpu_memory_used_bytes", GPU, NAMED),
        query(f"max({series('whyidle_gpu_memory_reserved_bytes')})", "reserved"),
        query(f"max({series('whyidle_gpu_memory_total_bytes')})", "total"),
        unit="bytes",
        width=8,
        dotted=["total"],
        nothing=NO_GPU,
    )


def _pcie() -> Panel:
    return trend(
        "PCIe",
        "Bytes per second over PCIe, sent by the GPU (tx) or received (rx). Batches, offloaded state and "
        "checkpoints use PCIe.",
        grows("whyidle_gpu_pcie_bytes_total", "gpu, direction", NAMED + " {{direction}}"),
        unit="Bps",
        width=8,
        nothing=NO_GPU,
    )


def _nvlink() -> Panel:
    return trend(
        "NVLink",
        "Payload per second over all NVLinks of a GPU. If one GPU is below the others in a collective, check its "
        "links.",
        grows("whyidle_gpu_nvlink_bytes_total", "gpu, direction", NAMED + " {{direction}}"),
        unit="Bps",
        width=8,
        nothing="No GPU with NVLink",
    )


def _errors() -> Panel:
    return trend(
        "Errors of memory and links",
        "Errors per second: of memory, corrected by ECC or not; packets sent again over PCIe; errors on NVLinks. "
        "Many corrected memory errors are a warning of an uncorrected one, which ends the job. Errors that grow "
        "on a link mean that the link is bad and slow.",
        grows("whyidle_gpu_ecc_errors_total", "gpu, kind", NAMED + " memory {{kind}}", 'since="volatile"', most=ERRORS),
        grows("whyidle_gpu_pcie_replays_total", GPU, NAMED + " PCIe replays", most=2),
        grows("whyidle_gpu_nvlink_errors_total", "gpu, kind", NAMED + " NVLink {{kind}}", most=2),
        unit="ops",
        width=8,
        nothing=NO_GPU,
    )


def _links() -> Panel:
    lanes = "whyidle_gpu_pcie_link_width_lanes", "whyidle_gpu_pcie_link_width_max_lanes"
    speed = "whyidle_gpu_pcie_link_generation", "whyidle_gpu_pcie_link_generation_max"
    nvlinks = series("whyidle_gpu_nvlink_rate_bytes_per_second")
    return trend(
        "Links, as a share of the maximum",
        "Lanes and speed (generation) of PCIe now, as a share of the maximum. Fewer lanes mean that the card does not "
        "sit well or that the slot is bad. An idle GPU lowers the speed by itself. NVLinks are shown only if those of "
        "one GPU carry less than those of the node's best, because a link is down.",
        *(
            query(f"max by (gpu) ({series(has)}) / max by (gpu) ({series(can)})", f"{NAMED} {words}")
            for (has, can), words in ((lanes, "lanes"), (speed, "speed"))
        ),
        query(f"min({nvlinks}) / max({nvlinks}) < 1", "worst NVLinks"),
        unit="percentunit",
        width=8,
        most=1,
        nothing=NO_GPU,
    )


def _repairs() -> Panel:
    rows = f"max by (gpu, kind) ({series('whyidle_gpu_remapped_rows')})"
    pages = f"max by (gpu, kind) ({series('whyidle_gpu_retired_pages')})"
    due = {
        "whyidle_gpu_row_remap_pending": "row remap due at the next reset",
        "whyidle_gpu_page_retirement_pending": "page retirement due at the next reset",
        "whyidle_gpu_row_remap_failure": "row remap failed: replace the GPU",
    }
    said = [
        f'label_replace({rows}, "what", "rows remapped, $1", "kind", "(.*)")',
        f'label_replace({pages}, "what", "pages retired, $1", "kind", "(.*)")',
        *(
            f'label_replace(max by (gpu) ({series(metric)}), "what", "{words}", "", "")'
            for metric, words in due.items()
        ),
    ]
    return table(
        "Memory that was replaced, or is due to be",
        "Rows remapped and pages retired so far, and whether one waits for the next reset. A failure means that the "
        "GPU must be replaced.",
        listed(f"({' or '.join(said)}) > 0"),
        columns=[
            Column("gpu", "GPU", width=60),
            Column("what", "What"),
            Column("Value", "How many", "short", width=100),
        ],
        sort="How many",
        width=16,
        nothing="No row was remapped and no page retired",
    )


def _identity() -> Panel:
    labels = "gpu, model, architecture, uuid, pci_bus_id, driver, mig"
    return table(
        "Identity of GPUs",
        "Which GPUs the node has, and how many processes compute on each, as far as the agent sees them. The driver, "
        "and often the model, should be the same on all nodes of a run.",
        listed(f"max by ({labels}) ({series('whyidle_gpu_info')})"),
        listed(f"max by (gpu) ({series('whyidle_gpu_processes')})"),
        columns=[
            Column("gpu", "GPU", width=60),
            Column("model", "Model"),
            Column("uuid", "UUID", width=340),
            Column("pci_bus_id", "PCI"),
            Column("driver", "Driver", width=110),
            Column("mig", "MIG", width=60),
            Column("B", "Processes", "short", width=90),
        ],
        width=16,
        nothing=NO_GPU,
    )


def _mig() -> Panel:
    used, most = "whyidle_gpu_mig_memory_used_bytes", "whyidle_gpu_mig_memory_total_bytes"
    return table(
        "MIG devices",
        "Parts of GPUs, and how much of their memory is in use.",
        listed(
            f"max by (uuid) ({series(used)}) / max by (uuid) ({series(most)}) * on (uuid) group_left (gpu, profile) "
            f'max by (uuid, gpu, profile) (label_replace({series("whyidle_gpu_mig_info")}, "uuid", "$1", "mig_uuid", '
            '"(.+)"))'
        ),
        columns=[
            Column("gpu", "GPU", width=60),
            Column("profile", "Profile", width=90),
            Column("uuid", "UUID"),
            Column("A", "Memory in use", "percentunit", cell="gauge", most=1),
        ],
        nothing="No GPU is divided",
        width=8,
    )
