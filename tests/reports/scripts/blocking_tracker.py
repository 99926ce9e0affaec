"""Each step sends its metrics to a tracker and waits for its answer."""

import os
import socket
import time

import torch
from truth import FAST, batches, clock, done, model, optimizer, start, step

STEPS, SECONDS = 400, 0.03

ours, theirs = socket.socketpair()
if os.fork() == 0:  # the tracker
    ours.close()
    while theirs.recv(1 << 16):
        time.sleep(0 if FAST else SECONDS)
        theirs.send(b"ok")
    os._exit(0)
theirs.close()


def log_metrics(number: int, loss: torch.Tensor) -> None:
    ours.send(f"{number} {float(loss)}".encode())
    ours.recv(16)


network = model()
adapt = optimizer(network)
start()
for number, (inputs, labels) in enumerate(batches(STEPS)):
    loss = step(network, adapt, inputs, labels, 0.02)
    with clock("tracker"):
        log_metrics(number, loss)
ours.close()
done(loss)
