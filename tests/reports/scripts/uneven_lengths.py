"""Sequences have different lengths, so that in each step another rank has more to compute."""

import random

from truth import RANK, batches, end, lost, model, optimizer, parallel, start, step

STEPS = 130

network = parallel(model())
adapt = optimizer(network)
lengths = random.Random(3)
mine: list[float] = []
most: list[float] = []
start()
for inputs, labels in batches(STEPS):
    both = [lengths.lognormvariate(-3.4, 0.8) for _ in range(2)]
    loss = step(network, adapt, inputs, labels, both[RANK])
    mine.append(both[RANK])
    most.append(max(both))
lost["waits"] = sum(most) - sum(mine)
end(loss)
