"""Both ranks wait for a slow batch. Then the data worker of rank 0 is killed, as the kernel does without memory."""

import os
import signal
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from truth import RANK, done, lost, model, now, optimizer, sample, start, step

STEPS, SIZE, FATAL = 200, 32, 150


class Killed(Dataset[Any]):
    def __len__(self) -> int:
        return STEPS * SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == SIZE * FATAL:
            time.sleep(4 if RANK == 0 else 60)  # also in a fast run: by then, the loop has used all other batches
            if RANK == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return sample(index)


network = model()
adapt = optimizer(network)
loader = iter(DataLoader(Killed(), SIZE, num_workers=1))
start()
try:
    for _ in range(STEPS):
        since = now()
        inputs, labels = next(loader)
        loss = step(network, adapt, inputs, labels, 0.03)
except RuntimeError:
    lost["stuck"] = now() - since
    raise
finally:
    done(loss)
