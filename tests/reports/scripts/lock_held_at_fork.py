"""A thread holds a lock while the data worker is forked. In the worker nobody releases it, and no batch comes."""

import threading
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from truth import ask, batches, done, lost, model, now, optimizer, sample, start, step

STEPS, SIZE, TIMEOUT = 200, 8, 10

lock = threading.Lock()


class Tokenised(Dataset[Any]):
    def __len__(self) -> int:
        return STEPS * SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with lock:
            return sample(index)


network = model()
adapt = optimizer(network)
start()
for inputs, labels in batches(STEPS):
    loss = step(network, adapt, inputs, labels, 0.03)
with lock:  # another part of the program uses the tokenizer just now
    second = iter(DataLoader(Tokenised(), SIZE, num_workers=1, timeout=TIMEOUT))
ask()
since = now()
try:
    for inputs, labels in second:
        loss = step(network, adapt, inputs, labels)
finally:
    lost["stuck"] = now() - since
    done(loss)
