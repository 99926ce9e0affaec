"""A run that continues from a checkpoint loads all batches that it has trained on before, and drops them."""

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from truth import FOLDER, clock, done, model, optimizer, sample, start, step, wait

STEPS, SKIPPED, SIZE = 190, 90, 8


class Read(Dataset[Any]):
    def __len__(self) -> int:
        return STEPS * SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        wait(0.008)
        return sample(index)


network = model()
adapt = optimizer(network)
torch.save(network.state_dict(), FOLDER / "checkpoint.pt")
network.load_state_dict(torch.load(FOLDER / "checkpoint.pt"))
batches = iter(DataLoader(Read(), SIZE, num_workers=1))
start()
with clock("skipped"):
    for _ in range(SKIPPED):
        next(batches)
for inputs, labels in batches:
    loss = step(network, adapt, inputs, labels, 0.07)
done(loss)
