"""A run saves every five steps to a slow drive, and takes longer to save than to compute."""

import os

import torch
from truth import FOLDER, batches, clock, done, model, optimizer, start, step, wait

STEPS, BETWEEN = 130, 5


class SlowDrive:
    def __init__(self, path: str) -> None:
        self.file = open(path, "wb")  # noqa: SIM115

    def write(self, data: bytes) -> int:
        wait(len(data) * 1.2e-6)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())


network = model()
adapt = optimizer(network)
start()
for number, (inputs, labels) in enumerate(batches(STEPS)):
    loss = step(network, adapt, inputs, labels, 0.03)
    if number % BETWEEN == BETWEEN - 1:
        with clock("save"):
            drive = SlowDrive(str(FOLDER / f"{number}.pt"))
            torch.save(network.state_dict(), drive)  # pyright: ignore[reportArgumentType]
            drive.flush()
            drive.file.close()
done(loss)
