"""Each step gathers the states of twelve metrics from all ranks, one after the other, over a slow link."""

import torch
import torch.distributed as dist
from truth import batches, clock, end, model, optimizer, parallel, start, step

STEPS, METRICS, SIZE = 36, 12, 16_384

network = parallel(model(32, 1))
adapt = optimizer(network)
states = [torch.zeros(SIZE) for _ in range(METRICS)]
start()
for inputs, labels in batches(STEPS, 64, 32):
    loss = step(network, adapt, inputs, labels, 0.03)
    with clock("metrics"):
        for state in states:
            dist.all_gather([torch.empty(SIZE), torch.empty(SIZE)], state)
end(loss)
