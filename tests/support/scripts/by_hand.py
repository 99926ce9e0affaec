"""Saves by hand, without fsync, in every tenth step: `by_hand.py FILE HOW`. Prints for how many ns it wrote, and for
how many of them it was on a CPU or waited for one.

With `bracketed` it marks the phase for whyidle. With `sent` it writes the same amount to a socket instead of a file.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

import torch
from own_clock import OwnClock
from torch.utils.data import DataLoader, TensorDataset

SIZE = 128 << 20


def drain(end: socket.socket) -> None:
    while end.recv(1 << 20):
        pass


def main() -> None:
    path, how = sys.argv[1], sys.argv[2]
    torch.set_num_threads(1)
    state = bytes(SIZE)
    ours, theirs = socket.socketpair()
    threading.Thread(target=drain, args=(theirs,), daemon=True).start()
    net = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    clock = OwnClock()
    wrote = busy = saves = 0
    for number, (batch,) in enumerate(DataLoader(TensorDataset(torch.ones(240, 256)), 8), 1):
        net(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 10 == 0:
            begun, busy_before = time.monotonic_ns(), clock.busy_ns()
            if how == "bracketed":
                import whyidle

                with whyidle.phase("checkpoint"), open(path, "wb") as file:
                    file.write(state)
            elif how == "sent":
                ours.sendall(state)
            else:
                with open(path, "wb") as file:
                    file.write(state)
            wrote += time.monotonic_ns() - begun
            busy += clock.busy_ns() - busy_before
            saves += 1
    print(json.dumps({"wrote": wrote, "busy": busy, "saves": saves}))


if __name__ == "__main__":
    main()
