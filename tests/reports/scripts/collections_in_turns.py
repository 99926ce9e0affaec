"""Full garbage collections stop the ranks in different steps, and each rank waits for the other."""

import gc

from truth import RANK, batches, clock, end, model, optimizer, parallel, start, step

STEPS, BETWEEN = 120, 10

heap = [{"document": index, "tokens": [index]} for index in range(900_000)]
network = parallel(model())
adapt = optimizer(network)
gc.disable()
start()
for number, (inputs, labels) in enumerate(batches(STEPS)):
    if number % BETWEEN == RANK * BETWEEN // 2:
        with clock("collection"):
            gc.collect()
    loss = step(network, adapt, inputs, labels, 0.03)
end(loss)
