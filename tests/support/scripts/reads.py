"""A loop whose thread reads a file itself; says on stdout how many bytes it read by calls, and its major page faults.

reads.py FILE NAME
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

STEPS, PAGES, BYTES, SLOW = 100, 8, 1 << 19, 0.01
"""Pages that a step touches, bytes that it reads, and seconds for which it sleeps, as if the disk were slow."""


class File(IterableDataset[torch.Tensor]):
    def __init__(self, path: str, how: str):
        self.how, self.bytes = how, 0
        self.fd = os.open(path, os.O_RDONLY)
        self.mapped = mmap.mmap(self.fd, 0, prot=mmap.PROT_READ)
        self.mapped.madvise(mmap.MADV_RANDOM)

    def batch(self) -> torch.Tensor:
        time.sleep(SLOW)
        if self.how == "calls":
            self.bytes += len(os.pread(self.fd, BYTES, 0))
        elif self.how != "sleeps":
            self.mapped.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for page in random.sample(range(len(self.mapped) // mmap.PAGESIZE), PAGES):
                self.mapped[page * mmap.PAGESIZE]
        return torch.ones(8, 64)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(STEPS):
            yield self.batch()


def marked(file: File) -> Iterator[torch.Tensor]:
    import whyidle

    for _ in range(STEPS):
        with whyidle.phase("data"):
            batch = file.batch()
        yield batch


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def main(path: str, how: str) -> None:
    model, file = nn.Linear(64, 64), File(path, how)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = faults()
    for batch in marked(file) if how == "marked" else DataLoader(file, batch_size=None) if how == "loader" else file:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps({"steps": STEPS, "bytes": file.bytes, "faults": faults() - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
