"""Sets the number of data workers for each epoch, by what whyidle measured in the previous epoch.

    python examples/adapt_workers.py            # one rank; --fixed keeps the number of workers

The dataset imitates a slow file system: each sample takes 50 ms.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import whyidle


class Slow(Dataset[torch.Tensor]):
    """A dataset whose samples each take some time to read."""

    def __init__(self, samples: int, seconds: float):
        self.samples, self.seconds = samples, seconds

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((256,), float(index % 7))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=160, help="of an epoch")
    parser.add_argument("--workers", type=int, default=1, help="to begin with")
    parser.add_argument("--most", type=int, default=4, help="workers: to start one takes time and memory, too")
    parser.add_argument("--fixed", action="store_true", help="keep the number of workers")
    args = parser.parse_args()

    whyidle.attach()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    workers = args.workers
    for epoch in range(args.epochs):
        begun = time.monotonic()
        for x in DataLoader(Slow(args.samples, 0.05), batch_size=2, num_workers=workers):
            net(x.to(device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch} workers {workers} seconds {time.monotonic() - begun:.2f}", flush=True)

        advice = whyidle.signals().find("data.workers")  # for this epoch; None if more workers would not help
        if advice and not args.fixed:
            workers = min(args.most, int(advice.settings["num_workers"]))


if __name__ == "__main__":
    main()
