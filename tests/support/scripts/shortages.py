"""Trainings that are short of something that they were given: CPUs, threads, memory or /dev/shm.

Each prints the seconds of its loop, from the first batch on, by its own clock.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CLASSES = 10


def busy(seconds: float) -> None:
    """By CPU time: a CPU that others use makes it no shorter."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))


def model(width: int, layers: int = 2) -> nn.Module:
    width = min(width, 2048)
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


def loop(net: nn.Module, batches: Any) -> float:
    """Trains on all batches. Returns the seconds from the end of the first step on."""
    optimizer, begun = torch.optim.SGD(net.parameters(), 1e-3), 0.0
    for x in batches:
        net(x[:, :2048]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        begun = begun or time.monotonic()
    return time.monotonic() - begun


class Decoded(Dataset[Tensor]):
    """Samples that a CPU works on; with ``threads``, torch's own threads do."""

    def __init__(self, samples: int, seconds: float, threads: int, width: int):
        self.samples, self.seconds, self.threads, self.width = samples, seconds, threads, width

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tensor:
        if self.threads:
            noise = torch.randn(512, 512)
            for _ in range(8):
                noise = noise @ noise / 512
        else:
            busy(self.seconds)
        return torch.ones(self.width)


class Files(Dataset[Tensor]):
    def __init__(self, folder: Path, width: int):
        self.files, self.width = sorted(folder.iterdir()), width

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        data = self.files[index].read_bytes()
        return torch.full((self.width,), float(data[0]))


def decode(args: argparse.Namespace) -> float:
    def init(_: int) -> None:
        if args.narrow >= 0:
            os.sched_setaffinity(0, {args.narrow})
        if args.threads:
            torch.set_num_threads(args.threads)

    data = Decoded(args.samples, args.decode, args.threads, args.width)
    batches = DataLoader(data, args.batch, num_workers=args.workers, worker_init_fn=init)
    return loop(model(args.width), batches)


def files(args: argparse.Namespace) -> float:
    net, seconds = model(args.width), 0.0
    batches = DataLoader(Files(args.folder, args.width), 4, num_workers=args.workers, persistent_workers=True)
    for epoch in range(args.epochs):
        begun = time.monotonic()
        loop(net, batches)
        print(f"epoch {epoch}: {time.monotonic() - begun:.2f} s", flush=True)
        seconds += time.monotonic() - begun if epoch else 0.0
    return seconds / (args.epochs - 1)


def rank_of_two(rank: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    net = DistributedDataParallel(model(args.width, 3))
    seconds = loop(net, (torch.ones(256, args.width) for _ in range(args.samples)))
    if rank == 0:
        print(f"seconds {seconds:.2f}", flush=True)
    dist.destroy_process_group()


def ranks(args: argparse.Namespace) -> float:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.setdefault("MASTER_PORT", str(probe.getsockname()[1]))
    mp.spawn(rank_of_two, (args,), nprocs=2)
    return 0.0


CASES = {"decode": decode, "files": files, "ranks": ranks}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--samples", type=int, default=320)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--decode", type=float, default=0.02)
    parser.add_argument("--narrow", type=int, default=-1)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.case == "decode" and not args.threads:
        torch.set_num_threads(1)
    if seconds := CASES[args.case](args):
        print(f"seconds {seconds:.2f}", flush=True)


if __name__ == "__main__":
    main()
