"""The collector `gpu`: NVIDIA GPUs and their MIG devices, through NVML."""

from __future__ import annotations

from ...collector import Options
from .collector import GpuCollector


def create(options: Options) -> GpuCollector:
    return GpuCollector(options)


__all__ = ["GpuCollector", "create"]
