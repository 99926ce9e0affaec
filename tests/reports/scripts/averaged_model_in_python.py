"""After each step, Python updates an averaged copy of the model, one small tensor after the other."""

import copy

import torch
from torch import nn
from truth import batches, clock, done, model, optimizer, start, step

STEPS = 130


def update(average: nn.Module, network: nn.Module) -> None:
    with torch.no_grad():
        for mine, its in zip(average.parameters(), network.parameters(), strict=True):
            for row, new in zip(mine.view(-1, mine.shape[-1]), its.view(-1, its.shape[-1]), strict=True):
                row.mul_(0.999).add_(new, alpha=0.001)


network = model(128, 24)
average = copy.deepcopy(network)
adapt = optimizer(network)
start()
for inputs, labels in batches(STEPS):
    loss = step(network, adapt, inputs, labels, 0.02)
    with clock("average"):
        update(average, network)
done(loss)
