"""At the start of each epoch, the worker reads 400 samples into its shuffle buffer before it gives the first one."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from truth import done, model, optimizer, sample, start, step, timed, wait

EPOCHS, STEPS, SIZE, BUFFER = 5, 40, 16, 400


class Shuffled(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        buffer: list[int] = []
        for index in range(BUFFER + STEPS * SIZE):
            if len(buffer) < BUFFER:
                wait(0.003)
                buffer.append(index)
                continue
            place = index * 7919 % BUFFER
            yield sample(buffer[place])
            buffer[place] = index


network = model()
adapt = optimizer(network)
loader = DataLoader(Shuffled(), SIZE, num_workers=1, persistent_workers=True)
start()
for _ in range(EPOCHS):
    for inputs, labels in timed(loader, first="first", rest="others"):
        loss = step(network, adapt, inputs, labels, 0.03)
done(loss)
