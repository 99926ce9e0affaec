"""Ranks that average their gradients in each step, or exchange tensors in two groups on two interfaces.

exchanges.py [--steps N] [--million PARAMETERS]                 one group, as GLOO_SOCKET_IFNAME says
exchanges.py --groups eth0:MEGABYTES eth1:MEGABYTES             a group on each interface
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from where_truth import clock, done, now, work


def moved() -> dict[str, tuple[int, int]]:
    """Interface -> bytes received and sent."""
    found = {}
    with open("/proc/self/net/dev") as table:
        for line in table.readlines()[2:]:
            name, _, numbers = line.strip().partition(":")
            found[name] = (int(numbers.split()[0]), int(numbers.split()[8]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--million", type=float, default=1.03)
    parser.add_argument("--work", type=float, default=0.005, help="CPU seconds of a step")
    parser.add_argument("--groups", nargs="+", default=[])
    args = parser.parse_args()
    dist.init_process_group("gloo")
    extra = []
    for group in args.groups:
        name, _, size = group.partition(":")
        os.environ["GLOO_SOCKET_IFNAME"] = name
        extra.append((dist.new_group(backend="gloo"), torch.ones(int(float(size) * 2**18))))
    width = 64 if extra else max(8, int((args.million * 1e6) ** 0.5))
    layers: nn.Module = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, 10))
    net = layers if extra else nn.parallel.DistributedDataParallel(layers)
    adapt = torch.optim.SGD(net.parameters(), 0.01)
    inputs, labels = torch.randn(8, width), torch.randint(0, 10, (8,))
    loss = torch.zeros(())
    dist.barrier()
    before, begun = moved(), now()
    for _ in range(args.steps):
        loss = nn.functional.cross_entropy(net(inputs), labels)
        work(args.work)
        adapt.zero_grad()
        with clock("exchange"):
            loss.backward()
            for group, tensor in extra:
                dist.all_reduce(tensor, group=group)
        adapt.step()
    after = moved()
    links = {name: max(a - b for a, b in zip(after[name], before[name], strict=True)) for name in before}
    done(begun, loss, links=links)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
