"""Rank 0 saves to a slow disk every 20 steps. Rank 1 goes on, and waits for it in the next all-reduce."""

import io

import torch
from truth import FOLDER, RANK, batches, clock, end, model, optimizer, parallel, start, step, wait

STEPS, BETWEEN = 110, 20


class SlowFile(io.FileIO):
    def write(self, data: bytes) -> int:
        wait(len(data) * 5e-6)
        return super().write(data)


network = parallel(model())
adapt = optimizer(network)
start()
for number, (inputs, labels) in enumerate(batches(STEPS)):
    loss = step(network, adapt, inputs, labels, 0.03)
    if RANK == 0 and number % BETWEEN == BETWEEN - 1:
        with clock("save"), SlowFile(FOLDER / f"{number}.pt", "w") as file:
            torch.save(network.module.state_dict(), file)
end(loss)
