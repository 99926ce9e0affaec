"""Rank 1 has fewer batches and leaves the loop. Rank 0 waits in an all-reduce until it times out."""

from datetime import timedelta

import torch.distributed as dist
from truth import RANK, ask, batches, done, lost, model, now, optimizer, parallel, start, step, wait

STEPS, FEWER, TIMEOUT = 120, 10, 12.0

dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
network = parallel(model())
adapt = optimizer(network)
start()
try:
    for inputs, labels in batches(STEPS - FEWER * RANK):
        since = now()
        loss = step(network, adapt, inputs, labels, 0.03)
    done(loss)
    ask()
    wait(3 * TIMEOUT)  # it writes its metrics, and waits for the other rank in its own way
except RuntimeError:
    lost["stuck"] = now() - since
    done(loss)
    raise
