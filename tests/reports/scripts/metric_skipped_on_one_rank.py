"""After some steps, rank 1 has no sample to validate and skips the gathering of a metric, which rank 0 waits in."""

from datetime import timedelta

import torch
import torch.distributed as dist
from truth import RANK, ask, batches, done, lost, model, now, optimizer, parallel, start, step

STEPS, SKIPPED, TIMEOUT = 160, 130, 12.0

dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
metrics = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT))
network = parallel(model())
adapt = optimizer(network)
start()
try:
    for number, (inputs, labels) in enumerate(batches(STEPS)):
        since = now()
        loss = step(network, adapt, inputs, labels, 0.03)
        if number == SKIPPED:
            ask()
            done(loss)
        if number % 10 == 0 and not (number == SKIPPED and RANK == 1):
            dist.all_gather([torch.empty(1), torch.empty(1)], loss.detach().view(1), group=metrics)
except RuntimeError:
    lost["stuck"] = now() - since
    done(loss)
    raise
