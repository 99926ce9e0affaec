"""Each of four data workers computes with eight threads. There are far more threads than CPUs."""

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from truth import FAST, done, model, optimizer, sample, start, step, timed

STEPS, SIZE = 30, 4


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return STEPS * SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.ones(1200, 1200)
        for _ in range(0 if FAST else 3):
            image = image @ image / 1200
        return sample(index)


def many_threads(worker: int) -> None:
    torch.set_num_threads(8)


network = model()
adapt = optimizer(network)
loader = DataLoader(Augmented(), SIZE, num_workers=4, worker_init_fn=many_threads)
start()
for inputs, labels in timed(loader):
    loss = step(network, adapt, inputs, labels, 0.02)
done(loss)
