"""Each epoch starts its workers again, and each worker first opens its index, which takes 1.2 s."""

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from truth import done, model, optimizer, sample, start, step, timed, wait

EPOCHS, STEPS, SIZE, SECONDS = 6, 24, 64, 1.2


class Fast(Dataset[Any]):
    def __len__(self) -> int:
        return STEPS * SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return sample(index)


def opens_its_index(worker: int) -> None:
    wait(SECONDS)


network = model()
adapt = optimizer(network)
loader = DataLoader(Fast(), SIZE, num_workers=2, worker_init_fn=opens_its_index)
start()
for _ in range(EPOCHS):
    for inputs, labels in timed(loader, first="first", rest="others"):
        loss = step(network, adapt, inputs, labels, 0.02)
done(loss)
