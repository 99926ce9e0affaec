"""Every 25 steps, rank 0 validates the model alone. Rank 1 waits for it at a barrier."""

import torch
import torch.distributed as dist
from truth import RANK, batches, clock, end, model, optimizer, parallel, start, step, work

STEPS, BETWEEN = 125, 25

network = parallel(model())
adapt = optimizer(network)
start()
for number, (inputs, labels) in enumerate(batches(STEPS)):
    loss = step(network, adapt, inputs, labels, 0.03)
    if number % BETWEEN == BETWEEN - 1:
        if RANK == 0:
            network.eval()
            with torch.no_grad(), clock("validation"):
                for held_out, _ in batches(40):
                    network.module(held_out)
                    work(0.025)
            network.train()
        dist.barrier()
end(loss)
