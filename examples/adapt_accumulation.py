"""Accumulates gradients over more batches if whyidle finds that transfers between ranks take much of the time.

    torchrun --standalone --nproc-per-node 2 examples/adapt_accumulation.py     # --fixed reduces after each batch

More batches per step of the optimizer change the training: --most sets the largest number that is acceptable.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import whyidle


def decide(steps: torch.Tensor, most: int) -> None:
    """Sets how many batches to accumulate. All ranks must agree, so rank 0 decides."""
    if dist.get_rank() == 0:
        advice = whyidle.signals().find("network.accumulation")  # in the time since the last call
        if advice:
            steps.fill_(min(most, max(int(steps), int(advice.settings["accumulation_steps"]))))
    dist.broadcast(steps, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=240)
    parser.add_argument("--every", type=int, default=48, help="batches between two decisions")
    parser.add_argument("--width", type=int, default=512, help="of the model's layer")
    parser.add_argument("--most", type=int, default=8, help="batches that may be accumulated")
    parser.add_argument("--fixed", action="store_true", help="never accumulate")
    args = parser.parse_args()

    whyidle.attach()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    model = DistributedDataParallel(nn.Linear(args.width, args.width).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    decided = torch.ones((), dtype=torch.int64, device=device)
    steps, begun = 1, time.monotonic()
    for batch in range(args.batches):
        x = torch.randn(64, args.width, device=device)
        last = (batch + 1) % steps == 0
        with contextlib.nullcontext() if last else model.no_sync():
            (model(x).square().mean() / steps).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        if (batch + 1) % args.every == 0:
            if dist.get_rank() == 0:
                now = time.monotonic()
                print(f"batch {batch + 1} accumulated {steps} seconds {now - begun:.2f}", flush=True)
            if not args.fixed:
                decide(decided, args.most)
                steps = int(decided)
            begun = time.monotonic()
    # torch can hang where it frees a process group whose thread has yet to drop a tensor: it holds Python's lock, which
    # that thread needs. Sleeping releases the lock.
    time.sleep(0.5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
