"""The worker downloads a shard before it gives its samples, and starts the next download only when it needs it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from truth import done, model, optimizer, sample, start, step, timed, wait

SHARDS, STEPS, SIZE, SECONDS = 9, 15, 16, 0.9


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        for shard in range(SHARDS):
            wait(SECONDS)
            for index in range(STEPS * SIZE):
                yield sample(shard + index)


network = model()
adapt = optimizer(network)
loader = DataLoader(Streamed(), SIZE, num_workers=1)
start()
for inputs, labels in timed(loader):
    loss = step(network, adapt, inputs, labels, 0.03)
done(loss)
