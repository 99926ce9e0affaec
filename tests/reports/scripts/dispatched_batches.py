"""Rank 0 reads the batches of all ranks and sends them. The other rank has no loader, and waits for it."""

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from truth import RANK, WORLD, clock, end, model, optimizer, parallel, sample, start, step, wait

STEPS, SIZE = 25, 8


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return STEPS * SIZE * WORLD

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        wait(0.03)
        return sample(index)


network = parallel(model())
adapt = optimizer(network)
batches = iter(DataLoader(Slow(), SIZE * WORLD, num_workers=1)) if RANK == 0 else None
start()
for _ in range(STEPS):
    inputs, labels = torch.empty(SIZE * WORLD, 128), torch.empty(SIZE * WORLD, dtype=torch.long)
    if batches is not None:
        with clock("data"):
            inputs, labels = next(batches)
    with clock("dispatch"):
        dist.broadcast(inputs, 0)
        dist.broadcast(labels, 0)
    loss = step(network, adapt, inputs.chunk(WORLD)[RANK], labels.chunk(WORLD)[RANK], 0.03)
end(loss)
