"""Before each step, both ranks make a process group to agree on the longest sequence, and forget it."""

import os

import torch
import torch.distributed as dist
from truth import batches, clock, done, model, optimizer, parallel, start, step

STEPS = 500

network = parallel(model())
adapt = optimizer(network)
start()
for inputs, labels in batches(STEPS, 8):
    with clock("group"):
        group = dist.new_group([0, 1])
    with clock("reduce"):
        dist.all_reduce(torch.tensor([inputs.shape[1]]), dist.ReduceOp.MAX, group=group)
    loss = step(network, adapt, inputs, labels)
dist.barrier()
done(loss, threads=len(os.listdir("/proc/self/task")), files=len(os.listdir("/proc/self/fd")))
