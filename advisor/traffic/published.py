"""A published estimate of the traffic of one training, computed as the source does: every rank sends to every other
rank.

It is for Llama-3-70B over C4, one epoch. Readers who know these figures can compare ours with them (docs/traffic.md).
The formulas are those of the source: P parameters, L layers, H hidden size, T tokens, N mini-batches, G ranks of a
group. The factor 2 in front is the bytes of a bf16 element.
"""

from __future__ import annotations

from typing import NamedTuple

from .prediction import predict
from .shape import BACKWARD, FORWARD, Model, Parallel

PARAMETERS, LAYERS, HIDDEN, TOKENS, BATCHES = 70e9, 80, 8192, 156e9, 178_000
GROUP = 8
TENSOR, PIPELINE, DATA = 8, 8, 16
"""The mesh of the source's last example, with 1,024 GPUs."""
SWITCH = 51.2e12
"""bit/s of the switch that the source names."""


class Published(NamedTuple):
    """One line of the table."""

    what: str
    formula: str
    moved: float
    """Bytes per epoch by the source's formula."""
    unit: str
    """PB or EB, as in the source."""
    printed: str
    """The figure that the source prints."""
    rings: float
    """Bytes per epoch that NCCL's rings move, by the formulas of shape.py."""
    note: str


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


_THOUSANDS = "The source divides by about 1.0486 (1024² / 1000²): it mixes two units."
_GATHERS = "PyTorch's FSDP gathers the parameters again for the backward pass, which sends the same amount again."
_MESH_BACKWARD = "2NP·Gdp[2L(Gtp−1)/Gpp + (Gdp−1)] + 2TH(Gpp−1)"
_EACH_LAYER = "It counts all of P once for each layer. In Megatron-LM no gradient of a weight crosses the tensor group."
_EIGHT_TIMES = "In our rings each of 8 tensor parallel ranks hands its stage's activations on; the source counts one."
_BOTH = f"{_THOUSANDS} {_EACH_LAYER}"


def _rings(parallel: Parallel, *moments: str) -> float:
    model = Model(PARAMETERS, BATCHES, TOKENS, LAYERS, HIDDEN)
    moved = predict(model, parallel, gpus_per_node=8, way="ring")
    return BATCHES * sum(row.total for row in moved.rows if row.calls.moment in moments)


def table() -> list[Published]:
    backward, forward = mesh_backward(TENSOR, PIPELINE, DATA), mesh_forward(TENSOR, PIPELINE)
    sharded, hidden, handed_on = fully_sharded(GROUP), tensor_forward(GROUP), pipeline(GROUP)
    data, shard, tensor, stages, mesh = (
        {moment: _rings(parallel, moment) for moment in (FORWARD, BACKWARD)}
        for parallel in (
            Parallel(data=GROUP),
            Parallel(shard=GROUP),
            Parallel(tensor=GROUP),
            Parallel(pipeline=GROUP),
            Parallel(tensor=TENSOR, pipeline=PIPELINE, data=DATA),
        )
    )
    of_mesh = "2TH(2L·Gtp(Gtp−1) + Gpp−1)"
    rows = (
        ("data parallel, backward", "2NPG(G−1)", data_parallel(GROUP), "PB", "1,396 PB", data[BACKWARD], ""),
        ("FSDP, forward", "2NP(G−1)", sharded, "PB", "174 PB", shard[FORWARD], ""),
        ("FSDP, backward", "2NP(G−1)", sharded, "PB", "174 PB", shard[BACKWARD], _GATHERS),
        ("tensor parallel, backward", "4NPL(G−1)", tensor_backward(GROUP), "PB", "26,622 PB", tensor[BACKWARD], _BOTH),
        ("tensor parallel, forward", "4LTH(G−1)G", hidden, "PB", "21,840 PB", tensor[FORWARD], _THOUSANDS),
        ("pipeline, forward", "2TH(G−1)", handed_on, "PB", "17.9 PB", stages[FORWARD], ""),
        ("pipeline, backward", "2TH(G−1)", handed_on, "PB", "17.9 PB", stages[BACKWARD], ""),
        ("8 × 8 × 16, backward", _MESH_BACKWARD, backward, "EB", "61.8 EB", mesh[BACKWARD], _EACH_LAYER),
        ("8 × 8 × 16, forward", of_mesh, forward, "EB", "22.9 EB", mesh[FORWARD], _EIGHT_TIMES),
        ("8 × 8 × 16, both", "", backward + forward, "EB", "about 85 EB", sum(mesh.values()), ""),
    )
    return [Published(*row) for row in rows]


def switch_days() -> float:
    """Days that one switch needs for the last example. The source's "about 20 days" takes 51.2 Tbit/s for terabytes."""
    moved = mesh_backward(TENSOR, PIPELINE, DATA) + mesh_forward(TENSOR, PIPELINE)
    return moved * 8 / SWITCH / 86400
