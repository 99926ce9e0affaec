"""At the start of each epoch, the sampler makes a list of all samples in Python, in the training process."""

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Sampler
from truth import FAST, clock, done, model, optimizer, samples, start, step, timed, work

EPOCHS, STEPS, SIZE = 6, 25, 16


class Weighted(Sampler[int]):
    def __len__(self) -> int:
        return STEPS * SIZE

    def __iter__(self) -> Iterator[int]:
        with clock("sampler"):
            work(0.8)
            order: list[Any] = [*range(0 if FAST else 500_000)]
            random.Random(1).shuffle(order)
        yield from range(STEPS * SIZE)


network = model()
adapt = optimizer(network)
loader = DataLoader(samples(STEPS * SIZE), SIZE, sampler=Weighted(), num_workers=1, persistent_workers=True)
start()
for _ in range(EPOCHS):
    for inputs, labels in timed(loader):
        loss = step(network, adapt, inputs, labels, 0.03)
done(loss)
