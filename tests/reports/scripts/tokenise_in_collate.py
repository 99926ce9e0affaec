"""The data worker tokenises each batch in `collate_fn`, in Python, and takes longer than a step."""

from typing import Any

import torch
from torch.utils.data import DataLoader
from truth import done, model, optimizer, sample, samples, start, step, timed, work

STEPS, SIZE = 90, 16


def tokenise(parts: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    work(0.09)
    inputs, labels = zip(*(sample(index) for index in range(len(parts))), strict=True)
    return torch.stack(inputs), torch.tensor(labels)


network = model()
adapt = optimizer(network)
loader = DataLoader(samples(STEPS * SIZE), SIZE, num_workers=1, collate_fn=tokenise)
start()
for inputs, labels in timed(loader):
    loss = step(network, adapt, inputs, labels, 0.02)
done(loss)
