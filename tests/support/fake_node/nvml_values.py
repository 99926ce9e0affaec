"""The values of the simulated GPUs: those of an H100 SXM5 in an HGX board, different for each GPU."""

from __future__ import annotations

Values = dict[str, int | float | str]

MIB = 1 << 20
GIB = 1 << 30

SYSTEM: Values = {
    "driver": "550.54.15",
    "nvml": "12.550.54.15",
    "cuda": 12040,
    "epoch": 1_700_000_000,
    "boot": 1_699_999_940,
    "process4100": "/usr/bin/python3",
}

EVERY_GPU: Values = {
    "name": "NVIDIA H100 80GB HBM3",
    "vbios": "96.00.74.00.01",
    "part": "692-2G520-0200-500",
    "brand": 14,
    "architecture": 9,
    "compute_major": 9,
    "compute_minor": 0,
    "cores": 16896,
    "memory_bus_bits": 5120,
    "persistence": 1,
    "compute_mode": 0,
    "pstate": 0,
    "ecc": 1,
    "ecc_pending": 1,
    "mig_mode": 0,
    "mig_mode_pending": 0,
    "mig_max": 7,
    "power_limit_mw": 700_000,
    "power_default_mw": 700_000,
    "power_enforced_mw": 700_000,
    "power_min_mw": 200_000,
    "power_max_mw": 700_000,
    "temp_shutdown": 92,
    "temp_slowdown": 89,
    "temp_mem_max": 95,
    "temp_gpu_max": 87,
    "clock_graphics": 1755,
    "clock_sm": 1755,
    "clock_mem": 2619,
    "clock_video": 1530,
    "max_clock_graphics": 1980,
    "max_clock_sm": 1980,
    "max_clock_mem": 2619,
    "max_clock_video": 1980,
    "app_clock_graphics": 1980,
    "app_clock_mem": 2619,
    "fans": 0,
    "memory_total": 81_559 * MIB,
    "memory_reserved": 551 * MIB,
    "bar1_total": 131_072 * MIB,
    "bar1_used": 2 * MIB,
    "pcie_gen": 5,
    "pcie_gen_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_speed_mbps": 32_000,
    "clocks_event_reasons": 0,
    "clocks_event_reasons_supported": 0x1FF,
    "event_types": 0x9F,
    "sample_period_us": 200_000,
    "sample_buffer": 120,
    "ecc_volatile_corrected": 0,
    "ecc_volatile_uncorrected": 0,
    "ecc_volatile_corrected_dram": 0,
    "ecc_volatile_uncorrected_dram": 0,
    "ecc_volatile_corrected_sram": 0,
    "ecc_volatile_uncorrected_sram": 0,
    "ecc_aggregate_uncorrected": 0,
    "ecc_aggregate_uncorrected_dram": 0,
    "ecc_aggregate_corrected_sram": 0,
    "ecc_aggregate_uncorrected_sram": 0,
    "remapped_uncorrected": 0,
    "remapped_pending": 0,
    "remapped_failed": 0,
    "rows_max": 640,
    "rows_high": 0,
    "rows_partial": 0,
    "rows_low": 0,
    "rows_none": 0,
    **{f"violation_{policy}_ns": 0 for policy in ("sync_boost", "board_limit", "low_utilization", "reliability")},
    **{f"violation_{policy}_ns": 0 for policy in ("app_clocks", "base_clocks", "sw_thermal", "hw_thermal")},
    "violation_power_brake_ns": 0,
    "pcie_replay_rollovers": 0,
    "recovery_action": 0,
    "nvlinks": 18,
    "nvlink_up": 1,
    "nvlink_version": 7,
    "nvlink_mbps": 26_562,
    **{f"nvlink_{error}": 0 for error in ("crc_flit", "crc_data", "recovery", "ecc_data")},
    "fabric_state": 3,
    "mem_util": 20,
    "enc_util": 0,
    "dec_util": 0,
    "jpg_util": 0,
    "ofa_util": 0,
    "graphics": "",
    "mps": "",
    "integer": 3,
    "hmma": 24,
    "imma": 0,
    "fp64": 0,
    "fp32": 6,
    "fp16": 2,
}


def own(gpu: int) -> Values:
    """The GPU's own values. Most of them contain the number of the GPU."""
    return {
        "uuid": f"GPU-{gpu:08x}-feed-4bee-8bad-{0xC0FFEE00 + gpu:012x}",
        "serial": 1650023000100 + gpu,
        "pci": f"{0:08X}:{0x1B + 0x10 * gpu:02X}:00.0",
        "minor": gpu,
        "module": gpu + 1,
        "numa_node": gpu // 4,
        "util": 50 + gpu,
        "memory_used": (10 + gpu) * GIB,
        "temp": 40 + gpu,
        "power_mw": 300_000 + 1000 * gpu,
        "energy_mj": _grows(10_000_000_000 + gpu, 300_000 + 1000 * gpu),
        "temp_mem": 50 + gpu,
        "sm": 45 + gpu,
        "occupancy": 25 + gpu,
        "tensor": 30 + gpu,
        "dram": 35 + gpu,
        "pcie_tx": 100 + gpu,
        "pcie_rx": 200 + gpu,
        "nvlink_tx": 1800 + 18 * gpu,
        "nvlink_rx": 3600 + 18 * gpu,
        "nvlink_data_tx_kib": _grows(18_000_000 + 18 * gpu, (1800 + 18 * gpu) * 1024),
        "nvlink_data_rx_kib": _grows(36_000_000 + 18 * gpu, (3600 + 18 * gpu) * 1024),
        "nvlink_raw_tx_kib": _grows(20_000_000 + 18 * gpu, (1800 + 18 * gpu) * 1152),
        "nvlink_raw_rx_kib": _grows(40_000_000 + 18 * gpu, (3600 + 18 * gpu) * 1152),
        "nvlink3_replay": gpu,
        "nvlink_replay": 0,
        "pcie_replays": gpu,
        "pcie_tx_bytes": _grows(5_000_000 + gpu, (100 + gpu) * MIB),
        "pcie_rx_bytes": _grows(7_000_000 + gpu, (200 + gpu) * MIB),
        "violation_power_ns": _grows(1_000_000_000 + gpu, 50_000_000),
        "violation_thermal_ns": 2_000_000_000 + gpu,
        "ecc_aggregate_corrected": gpu + 1,
        "ecc_aggregate_corrected_dram": gpu + 1,
        "remapped_corrected": gpu % 2,
        "processes": f"{4100 + gpu}:{(10 + gpu) * GIB - 512 * MIB}",
    }


def _grows(base: int, per_second: int) -> str:
    """A counter."""
    return f"{base}+{per_second}"


MIG_MODE: Values = {"mig_mode": 1, "mig_mode_pending": 1, "processes": f"4171:{GIB}:1:0 4172:{3 * GIB}:3:0"}


def mig_devices(gpu: int) -> list[Values]:
    """Three instances of different sizes."""
    profiles = (("3g.40gb", 1, 3, 60, 40_192), ("2g.20gb", 3, 2, 32, 20_096), ("1g.10gb", 7, 1, 16, 9_984))
    return [
        {
            "uuid": f"MIG-{gpu:08x}-feed-5bee-8bad-{0xDEC0DE00 + instance:012x}",
            "name": f"NVIDIA H100 80GB HBM3 MIG {profile}",
            "instance": instance,
            "compute_instance": 0,
            "slices": slices,
            "compute_slices": slices,
            "multiprocessors": multiprocessors,
            "memory_mb": memory,
            "memory_total": memory * MIB,
            "memory_reserved": 16 * MIB,
            "memory_used": instance * GIB,
            "bar1_total": 4096 * MIB,
            "bar1_used": instance * MIB,
            "util": 60 + instance,
            "sm": 55 + instance,
            "occupancy": 35 + instance,
            "tensor": 40 + instance,
            "dram": 45 + instance,
            "ecc_volatile_uncorrected_sram": 0,
        }
        for profile, instance, slices, multiprocessors, memory in profiles
    ]
