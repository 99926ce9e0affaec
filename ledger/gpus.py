"""The GPUs of a rank: those that it may use, and those that it uses. Its words and strings in the ledger."""

from __future__ import annotations

UNUSED: tuple[str, ...] = ("", "model", "build", "hidden", "driver", "absent")
"""Why a rank uses no GPU, by index. Empty: it uses one, there is none, or it does not want one.

`model`: GPUs are visible, and the training is on the CPU. `build`: this torch has neither CUDA nor ROCm. `hidden`: the
job's environment hides all GPUs (CUDA_VISIBLE_DEVICES). `driver`: the runtime refuses the node's GPUs. `absent`: the
scheduler gave the job GPUs that the process cannot open.
"""

DEVICES = 16
"""Devices of a process with a higher index are not told apart."""
GPU_ERROR_BYTES = 96
GPU_WORDS: dict[str, int] = {
    "gpu_unused": 1,  # index into UNUSED
    "gpus_visible": 1,  # GPUs that the process could use, or that are kept from it; 0: not known
    "devices_used": 1,  # a bit for each device, by index, on which the process had tensors; 0: not known
    # torch's allocator of device memory, over all devices of the process, as far as it was looked at since window_ns.
    "alloc_steps": 1,  # steps from the first look to the last one
    "alloc_retries": 1,  # allocations for which cached memory was given back to the driver (num_alloc_retries)
    "alloc_flushes": 1,  # how often that happened, or the program asked for it (num_sync_all_streams)
    "memory_peak": 1,  # the most bytes of tensors on one device, since the process began
    "memory_reserved": 1,  # the most bytes that the allocator had from the driver, on the same device
    "memory_total": 1,  # bytes of that device
    # Looks at the utilisation of all devices, if there are several; since window_ns.
    "device_looks": 1,
    "device_busy": DEVICES,  # by index: the sum over these looks of the share of time with a kernel, in thousandths
}
