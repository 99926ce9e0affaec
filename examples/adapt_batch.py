"""Grows the batch while transfers between ranks take much of the time, and scales the learning rate with it.

    torchrun --standalone --nproc-per-node 2 examples/adapt_batch.py                  # keeps the batch
    torchrun --standalone --nproc-per-node 2 examples/adapt_batch.py --grow linear    # or sqrt

This changes what is trained, so nothing grows without --grow. With a larger batch there are fewer updates for the same
samples. Two published rules say how to scale the learning rate for a batch that is k times as large:

linear: k times (Goyal et al. 2017, arXiv 1706.02677, for SGD). The rate rises step by step, as their warm-up does
sqrt: sqrt(k) times (Krizhevsky 2014, arXiv 1404.5997; Hoffer et al. 2017, arXiv 1705.08741)

Neither holds for every model, and both fail above some size of the batch. Compare the held-out loss at the same number
of samples before you use this.
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

LIMIT = 0.2
"""Transfers that take this share of the time are worth a larger batch."""
RULES = {"linear": lambda times: times, "sqrt": lambda times: times**0.5}


class Rate:
    """The learning rate of a batch that grows. After each growth it rises to its new value over some steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, warmup: int):
        self.optimizer, self.warmup = optimizer, warmup
        self.base = self.target = self.before = optimizer.param_groups[0]["lr"]
        self.steps = warmup

    def grown(self, factor: float) -> None:
        self.before, self.target, self.steps = self.now(), self.base * factor, 0

    def now(self) -> float:
        return self.before + (self.target - self.before) * min(1.0, self.steps / max(1, self.warmup))

    def step(self) -> None:
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.now()


def decide(times: torch.Tensor, most: int) -> None:
    """Doubles the batch if transfers are the limit. All ranks must agree, so rank 0 decides."""
    if dist.get_rank() == 0:
        now = whyidle.signals()  # in the time since the last call
        if now.run_families.get("network", 0.0) >= LIMIT:
            times.fill_(min(most, 2 * int(times)))
    dist.broadcast(times, 0)


def samples(teacher: nn.Module, seed: int, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs, and what the teacher says about them, with noise."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 64, generator=random)
    noise = 0.1 * torch.randn(count, 1, generator=random)
    with torch.no_grad():
        return x.to(device), (3 * teacher(2 * x) + noise).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=480, help="batches of a rank, of 32 samples each")
    parser.add_argument("--every", type=int, default=48, help="batches between two decisions")
    parser.add_argument("--width", type=int, default=512, help="of the model")
    parser.add_argument("--most", type=int, default=8, help="how many times the batch may grow")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of the batch that it begins with")
    parser.add_argument(
        "--warmup", type=int, default=10, help="steps in which the rate rises after the batch has grown"
    )
    parser.add_argument("--grow", choices=sorted(RULES), help="grow the batch, and scale the rate by this rule")
    args = parser.parse_args()

    whyidle.attach()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))
    layers = nn.Sequential(nn.Linear(64, args.width), nn.Tanh(), nn.Linear(args.width, args.width), nn.Tanh())
    model = DistributedDataParallel(nn.Sequential(layers, nn.Linear(args.width, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    rate = Rate(optimizer, args.warmup)
    held_out = samples(teacher, 1 << 40, 1024, device)

    decided = torch.ones((), dtype=torch.int64, device=device)
    times, waiting, begun, whole = 1, 0, time.monotonic(), 0.0
    for batch in range(1, args.batches + 1):
        x, y = samples(teacher, batch * dist.get_world_size() + dist.get_rank(), 32, device)
        waiting += 1
        last = waiting == times
        with contextlib.nullcontext() if last else model.no_sync():
            (nn.functional.mse_loss(model(x), y) / times).backward()
        if last:
            rate.step()
            optimizer.step()
            optimizer.zero_grad()
            waiting = 0
        if batch % args.every == 0:
            seconds = time.monotonic() - begun
            whole += seconds
            with whyidle.phase("eval"), torch.no_grad():
                loss = nn.functional.mse_loss(model.module(held_out[0]), held_out[1]).item()
            if dist.get_rank() == 0:
                said = f"rate {rate.now():.4f} seconds {seconds:.2f} of {whole:.2f} held-out loss {loss:.4f}"
                print(f"batch {batch} times {times} {said}", flush=True)
            if args.grow and waiting == 0:
                decide(decided, args.most)
                if int(decided) != times:
                    times = int(decided)
                    rate.grown(RULES[args.grow](times))
            begun = time.monotonic()
    time.sleep(0.5)  # see adapt_accumulation.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
