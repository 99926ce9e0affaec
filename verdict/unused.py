"""Ranks that use no GPU although they were given some: before any family, this is the verdict. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from .accounts import RankAccount, RunAccount
from .case import VERDICT_SHARE
from .devices import reason
from .ends import counted, named
from .spare import full_nodes

HEADLINE = "unused"
"""What a verdict has instead of a family."""
_SAID: Mapping[str, str] = {
    "model": "{visible}, and the model is on the CPU",
    "build": "the node has {gpus}, and this torch is built without CUDA and ROCm",
    "hidden": "the job's environment hides {gpus}: CUDA_VISIBLE_DEVICES shows none",
    "driver": "the node has {gpus}, and the driver refuses them: {error}",
    "absent": "the scheduler gave the job {gpus}, and the process sees none",
}
_NEXT: Mapping[str, str] = {
    "model": 'move the model and each batch to the GPU, before the optimizer is made: `model.to("cuda")`',
    "build": "install a torch that is built for the node's GPUs: `torch.version.cuda` is None",
    "hidden": "find out who sets the variable: `env | grep VISIBLE_DEVICES` in the job",
    "driver": "compare the driver with the CUDA of torch: `nvidia-smi` and `torch.version.cuda`",
    "absent": "let the container, or the step of `srun`, have the GPUs: `ls /dev/nvidia*` in the job",
}


def idle_ranks(account: RunAccount) -> list[RankAccount]:
    found = [rank for rank in account.ranks if rank.stepped and reason(rank.newest)]
    busy = full_nodes((account.owner, account.run), [rank.newest for rank in account.ranks]) if found else set[str]()
    return [rank for rank in found if rank.newest.node not in busy]


def verdict_of(account: RunAccount) -> dict[str, object] | None:
    """What replaces the family, the share and the reason of a verdict; None if nearly all ranks use what they have."""
    ranks = idle_ranks(account)
    share = sum(rank.wall for rank in ranks) / account.rank_seconds if account.rank_seconds > 0 else 0.0
    if share < VERDICT_SHARE:
        return None
    return {"family": HEADLINE, "share": share, "summary": sentence(account, ranks)}


def sentence(account: RunAccount, ranks: list[RankAccount]) -> str:
    """Such as `2 GPUs are visible, and the model is on the CPU`."""
    worst = max(ranks, key=lambda rank: rank.newest.gpus_visible).newest
    gpus = counted(worst.gpus_visible, "GPU")
    visible = f"{gpus} {'is' if worst.gpus_visible == 1 else 'are'} visible"
    said = _SAID[reason(worst)].format(
        gpus=gpus, visible=visible, error=worst.strings["gpu_error"] or "no reason given"
    )
    return said if len(ranks) == len(account.ranks) else f"{named([rank.rank for rank in ranks])}: {said}"


def next_steps(account: RunAccount) -> list[str]:
    return [_NEXT[why] for why in dict.fromkeys(reason(rank.newest) for rank in idle_ranks(account))]
