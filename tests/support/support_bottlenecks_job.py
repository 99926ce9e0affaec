"""The training on a disturbed machine: plain PyTorch, data that is not in the page cache, checkpoints that are synced.

It does not use whyidle, and does not know the disturbance. torchrun starts it, and it trains until it is ended.
"""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FEATURES, CLASSES = 512, 64
SHARD_BYTES = 1 << 20
"""A shard is one packed batch of random bytes. FEATURES bytes are a sample."""


class Shards(Dataset[Tensor]):
    """One batch per file, in turn, without end. Nothing stays in the page cache, because a dataset is larger than
    memory."""

    def __init__(self, directory: Path, packings: int):
        self.files = sorted(directory.iterdir())
        self.packings = packings

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Tensor:
        packed = _read_cold(self.files[index % len(self.files)])
        for _ in range(self.packings):  # what an expensive preprocessing costs
            zlib.compress(packed)
        whole = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        return whole.view(-1, FEATURES).float() / 256


def _read_cold(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return b"".join(iter(lambda: file.read(SHARD_BYTES), b""))


def _save(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint that exists either completely or not at all."""
    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)


def _network() -> nn.Module:
    """Half a million parameters: 2.2 MB of gradients."""
    return nn.Sequential(nn.Linear(FEATURES, 960), nn.GELU(), nn.Linear(960, CLASSES))


def _turns(count: int) -> Iterator[int]:
    """The shards of this rank. No shard is read by two ranks."""
    yield from range(dist.get_rank(), count, dist.get_world_size())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--save-every", type=int, default=1_000_000, help="steps")
    parser.add_argument("--packings", type=int, default=0, help="CPU work in the data worker, for each batch")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(_network(), bucket_cap_mb=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    shards = Shards(args.data, args.packings)
    loader = DataLoader(shards, batch_size=None, sampler=_turns(len(shards)), num_workers=1)

    for step, x in enumerate(loader, 1):
        y = x.sum(1).long() % CLASSES
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % args.save_every == 0:
            _save(args.checkpoints / f"rank-{rank}.pt", {"step": step, "model": model.module.state_dict()})
        if step % 50 == 0 and rank == 0:
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
