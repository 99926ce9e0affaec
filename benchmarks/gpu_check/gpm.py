"""The share of time in which any kernel ran, by the GPU's own counters (NVML's GPM, Hopper and later)."""

from __future__ import annotations

from typing import Any


class Gpm:
    """Raises an exception if this GPU or this machine has no GPM."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        self._device = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]

    def begin(self) -> None:
        self._nvml.nvmlGpmSampleGet(self._device, self._samples[0])

    def end(self) -> float:
        """The share since ``begin``."""
        nvml = self._nvml
        nvml.nvmlGpmSampleGet(self._device, self._samples[1])
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        query.sample1, query.sample2 = self._samples
        query.metrics[0].metricId = nvml.NVML_GPM_METRIC_GRAPHICS_UTIL
        nvml.nvmlGpmMetricsGet(query)
        return query.metrics[0].value / 100


def gpm() -> Gpm | None:
    try:
        return Gpm()
    except Exception:  # no such package, library, device or counter
        return None
