"""A published estimate of the traffic of one training, computed as the source does: every rank sends to every other
rank.

Source: "Unveiling AI Data Center Network Traffic", Asterfusion, 2024-07-11 (cloudswit.ch). It is for Llama-3-70B over
C4, one epoch. The formulas are those of the source: P parameters, L layers, H hidden size, T tokens, N mini-batches,
G ranks of a group. The factor 2 in front is the bytes of a bf16 element. published_figures.py has what it prints.
"""

from __future__ import annotations

PARAMETERS, LAYERS, HIDDEN, TOKENS = 70e9, 80, 8192, 156e9
SAMPLES, BATCH = 364.6e6, 2048
BATCHES = SAMPLES / BATCH
GROUP = 8
TENSOR, PIPELINE, DATA = 8, 8, 16
"""The mesh of the source's last example, with 1,024 GPUs."""


def data_parallel(ranks: int) -> float:
    return 2 * BATCHES * PARAMETERS * ranks * (ranks - 1)


def fully_sharded(ranks: int) -> float:
    return 2 * BATCHES * PARAMETERS * (ranks - 1)


def tensor_backward(ranks: int) -> float:
    return 4 * BATCHES * PARAMETERS * LAYERS * (ranks - 1)


def tensor_forward(ranks: int) -> float:
    return 4 * LAYERS * TOKENS * HIDDEN * (ranks - 1) * ranks


def pipeline(stages: int) -> float:
    return 2 * TOKENS * HIDDEN * (stages - 1)


def mesh_backward(tensor: int, stages: int, data: int) -> float:
    gradients = 2 * BATCHES * PARAMETERS * data * (2 * LAYERS * (tensor - 1) / stages + (data - 1))
    return gradients + pipeline(stages)


def mesh_forward(tensor: int, stages: int) -> float:
    return 2 * TOKENS * HIDDEN * (2 * LAYERS * tensor * (tensor - 1) + stages - 1)
