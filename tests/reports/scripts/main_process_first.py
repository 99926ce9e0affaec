"""Rank 0 prepares the data for seconds while rank 1 waits at a barrier. Then both train."""

import torch.distributed as dist
from truth import RANK, ask, batches, end, model, optimizer, parallel, start, step, work

STEPS, SECONDS = 130, 9.0

network = parallel(model())
adapt = optimizer(network)
if RANK == 0:
    ask()
    work(SECONDS)
dist.barrier()
start()
for inputs, labels in batches(STEPS):
    loss = step(network, adapt, inputs, labels, 0.04)
end(loss)
