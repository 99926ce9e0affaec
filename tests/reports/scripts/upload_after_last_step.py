"""After the last step, rank 0 uploads the model for seconds, and rank 1 waits for it at a barrier."""

import torch.distributed as dist
from truth import RANK, batches, clock, end, model, optimizer, parallel, start, step, wait

STEPS, SECONDS = 180, 8.0

network = parallel(model())
adapt = optimizer(network)
start()
for inputs, labels in batches(STEPS):
    loss = step(network, adapt, inputs, labels, 0.03)
with clock("upload"):
    if RANK == 0:
        wait(SECONDS)
    dist.barrier()
end(loss)
