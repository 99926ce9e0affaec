"""After each step, both ranks gather a dictionary of statistics with many small Python objects."""

import gc

import torch.distributed as dist
from truth import batches, clock, end, lost, model, now, optimizer, parallel, start, step

STEPS = 70

network = parallel(model())
adapt = optimizer(network)
statistics = {
    f"sample-{index}": {"loss": index / 7, "tokens": [index, index + 1, index + 2], "name": f"document {index}"}
    for index in range(9000)
}
since = [0.0]


def collecting(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        since[0] = now()
    else:
        lost["collection"] += now() - since[0]


gc.callbacks.append(collecting)
start()
for inputs, labels in batches(STEPS):
    loss = step(network, adapt, inputs, labels, 0.03)
    with clock("gather"):
        dist.all_gather_object([None, None], statistics)
        dist.barrier()  # a rank that collects for longer delays the other one here, and not in the next backward pass
end(loss)
