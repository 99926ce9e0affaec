"""The GPUs that a rank may use, and why it uses none of them: its words and strings in the ledger."""

from __future__ import annotations

UNUSED: tuple[str, ...] = ("", "model", "build", "hidden", "driver", "absent")
"""Why a rank uses no GPU, by index. Empty: it uses one, there is none, or it does not want one.

`model`: GPUs are visible, and the training is on the CPU. `build`: this torch has neither CUDA nor ROCm. `hidden`: the
job's environment hides all GPUs (CUDA_VISIBLE_DEVICES). `driver`: the runtime refuses the node's GPUs. `absent`: the
scheduler gave the job GPUs that the process cannot open.
"""

GPU_ERROR_BYTES = 96
GPU_WORDS: dict[str, int] = {
    "gpu_unused": 1,  # index into UNUSED
    "gpus_visible": 1,  # GPUs that the process could use, or that are kept from it; 0: not known
}
