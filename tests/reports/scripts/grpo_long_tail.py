"""Each iteration generates tokens until the longest completion is done. Rank 1 draws the long ones."""

import random

import torch
from torch import nn
from truth import RANK, clock, end, model, parallel, start, work

ITERATIONS = 28

network = parallel(model(64, 4))
adapt = torch.optim.AdamW(network.parameters(), 1e-3)
lengths, generator = random.Random(5), torch.Generator().manual_seed(7 + RANK)
start()
for _ in range(ITERATIONS):
    length = (lengths.randint(15, 25), lengths.randint(60, 120))[RANK]
    prompts = torch.randn(8, 64, generator=generator)
    with torch.no_grad(), clock("generation"):
        for token in range(length):
            prompts[:, token % 64] = network.module(prompts).argmax(1).float() / 10
            work(0.003)
    labels = torch.randint(0, 10, (8,), generator=generator)
    for _ in range(2):
        loss = nn.functional.cross_entropy(network(prompts), labels)
        work(0.01)
        adapt.zero_grad()
        with clock("backward"):
            loss.backward()
        adapt.step()
end(loss)
