"""Gives each rank as many microbatches of a step as suit its speed, with DistributedDataParallel or FSDP2.

    torchrun --standalone --nproc-per-node 4 examples/even_load.py --slow 3            # --fsdp2 shards the model
    torchrun --standalone --nproc-per-node 4 examples/even_load.py --slow 3 --equal    # for comparison

A microbatch is imitated work: it takes --work seconds, and half as much again on the rank --slow. All ranks together
always train on the same samples, so the loss does not depend on which rank has which of them.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import whyidle


class Model(nn.Module):
    """A small network. Its forward pass takes some seconds longer, as that of a large one would."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.layers(x)


def microbatch(number: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The microbatch of this number, the same on every rank."""
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(number)).to(device)
    return x, x.sum(1, keepdim=True).sin()


def accumulates(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Ranks meet only in the last microbatch of a step, because they have different numbers of them."""
    if isinstance(model, FSDPModule):
        # Between two microbatches the parameters stay whole, so that nobody has to gather them.
        model.set_requires_gradient_sync(last)
        model.set_reshard_after_backward(last)
        return nullcontext()
    assert isinstance(model, DistributedDataParallel)
    return nullcontext() if last else model.no_sync()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--total", type=int, default=32, help="microbatches of a step, of all ranks together")
    parser.add_argument("--work", type=float, default=0.01, help="seconds of a microbatch")
    parser.add_argument("--slow", type=int, default=-1, help="the rank that needs half as much again")
    parser.add_argument("--fsdp2", action="store_true", help="shard the model instead of replicating it")
    parser.add_argument("--equal", action="store_true", help="give every rank the same number of microbatches")
    args = parser.parse_args()

    whyidle.attach()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model: nn.Module = Model(args.work * (1.5 if rank == args.slow else 1.0)).to(device)
    if args.fsdp2:
        fully_shard(model, reshard_after_forward=False)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    begun = time.monotonic()
    for step in range(args.steps):
        share = whyidle.share(args.total)
        count, start = share.count, share.start
        if args.equal:
            count, start = args.total // ranks, args.total // ranks * rank
        total_loss = torch.zeros((), device=device)
        for number in range(count):
            x, y = microbatch(step * args.total + start + number, device)
            with accumulates(model, last=number == count - 1):
                # Added up over microbatches and averaged over ranks, this is the gradient of the mean over all samples.
                loss = share.weight * nn.functional.mse_loss(model(x), y)
                loss.backward()
            total_loss += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 20 == 0:
            dist.all_reduce(total_loss)
            now = time.monotonic()
            said = f"loss {total_loss.item() / ranks:.6f} seconds {(now - begun) / 20:.4f}"
            counts = torch.tensor([count if one == rank else 0 for one in range(ranks)], device=device)
            dist.all_reduce(counts)
            if rank == 0:
                print(f"step {step + 1} counts {counts.tolist()} {said} {share.reason}", flush=True)
            begun = time.monotonic()
    time.sleep(0.5)  # see adapt_accumulation.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
