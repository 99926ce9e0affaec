"""A loop that saves its state, and waits until it is on the disk.

saves.py [--saves N] [--megabytes N] [--every STEPS] PLACE
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from where_truth import clock, done, model, now, spans, work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--work", type=float, default=0.02, help="CPU seconds of a step")
    args = parser.parse_args()
    net = model()
    adapt = torch.optim.SGD(net.parameters(), 0.05)
    state = torch.zeros(args.megabytes * 250_000)
    inputs, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
    loss = torch.zeros(())
    begun = now()
    for step in range(1, args.saves * args.every + 1):
        loss = nn.functional.cross_entropy(net(inputs), labels)
        work(args.work)
        adapt.zero_grad()
        loss.backward()
        adapt.step()
        if step % args.every == 0:
            since = now()
            with clock("save"), open(args.place / f"{step}.pt", "wb") as file:
                torch.save({"model": net.state_dict(), "state": state}, file)
                file.flush()
                os.fsync(file.fileno())
            spans[str(args.place)].append((since, now(), (args.place / f"{step}.pt").stat().st_size, 1))
    done(begun, loss)


if __name__ == "__main__":
    main()
