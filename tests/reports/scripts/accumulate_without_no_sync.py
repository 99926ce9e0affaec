"""The optimizer steps every fourth batch, but every backward pass reduces the gradients, over a link of 200 Mbit/s."""

from statistics import median

from torch import nn
from truth import batches, clock, end, lost, model, now, optimizer, parallel, start, work

STEPS, ACCUMULATED = 48, 4

network = parallel(model(384, 6))
adapt = optimizer(network)
start()
for number, (inputs, labels) in enumerate(batches(STEPS, 32, 384)):
    loss = nn.functional.cross_entropy(network(inputs), labels) / ACCUMULATED
    work(0.03)
    with clock("backward"):
        loss.backward()
    if number % ACCUMULATED == ACCUMULATED - 1:
        adapt.step()
        adapt.zero_grad()
plain = []
for _ in range(9):  # what a backward pass takes without a transfer
    with network.no_sync():
        extra = nn.functional.cross_entropy(network(inputs), labels)
        since = now()
        extra.backward()
        plain.append(now() - since)
lost["transfer"] = lost["backward"] - STEPS * median(plain)
end(loss)
