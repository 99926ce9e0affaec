"""The dimensions of a parallel training, and how the meshes of libraries name them."""

from __future__ import annotations

import re

DIMENSIONS: dict[str, str] = {
    **dict.fromkeys(("dp", "ddp", "data", "replicate", "dp_replicate"), "data"),
    **dict.fromkeys(("fsdp", "shard", "dp_shard", "dp_shard_cp"), "shard"),
    **dict.fromkeys(("tp", "tensor", "model"), "tensor"),
    **dict.fromkeys(("sp", "cp", "ulysses"), "sequence"),
    **dict.fromkeys(("ep", "expert"), "expert"),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage"), "pipeline"),
}
"""Name of a mesh dimension in PyTorch's examples, torchtitan or DeepSpeed -> our name of the dimension."""
_MORE = re.compile(r"( p2p)?( \(\d+\))?$")
"""What the label of a group has after the name of its dimension: messages, and the second group of a name."""


def dimension_named(label: str) -> str:
    """Our name of the dimension that the label of a group names; empty if it names none."""
    return DIMENSIONS.get(_MORE.sub("", label, count=1), "")
