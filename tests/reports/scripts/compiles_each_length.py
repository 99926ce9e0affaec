"""The compiled model meets another length in most steps, and compiles again."""

import torch
from torch import nn
from truth import clock, done, model, optimizer, samples, start, work

STEPS, LENGTHS = 90, 16

torch._dynamo.config.recompile_limit = 2 * LENGTHS
network = model(64, 5)
compiled = torch.compile(network, backend="aot_eager", dynamic=False)
adapt = optimizer(network)
nn.functional.cross_entropy(compiled(torch.zeros(200, 64)), torch.zeros(200, dtype=torch.long)).backward()
data = samples(200, 64)
known = set()
start()
for number in range(STEPS):
    length = 32 + (number * 7) % LENGTHS
    inputs, labels = data[:length]
    with clock("known" if length in known else "new"):
        loss = nn.functional.cross_entropy(compiled(inputs), labels)
    work(0.03)
    known.add(length)
    adapt.zero_grad()
    loss.backward()
    adapt.step()
done(loss)
