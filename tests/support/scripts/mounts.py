"""A loop whose files are on several mounts: `mounts.py WAY WORKERS FOLDER...`. It reads each file once.

- `read`: a batch is a file that is read at once.
- `small`: a batch is 16 files.
- `filter`: a batch is what a program makes of a file. The worker waits for its output and its errors.
- `mapped`: a batch is a file that is mapped, and stays so.
- `own`: the loop reads the files itself, in no loader.
- `thread`: a thread reads them, and puts batches into a queue.
- `program`: the loop lets a shell read them, and waits for it.
- `save`: saves 16 MiB four times, with fsync.
- `store`: FOLDER is `ADDRESS:PORT` of a server that sends each sample.
"""

from __future__ import annotations

import functools
import mmap
import os
import queue
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import torch
from torch import nn

import whyidle

BATCHES = 40
SAVED = 16 << 20
REPLY = 1 << 20


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def filtered(path: str) -> bytes:
    return subprocess.run(["cat", path], capture_output=True, check=True).stdout


@functools.cache
def kept(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def mapped(path: str) -> bytes:
    return kept(path)[:: mmap.PAGESIZE]


def asked(address: str) -> bytes:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as server:
        server.settimeout(60)
        found = b""
        while len(found) < REPLY:
            found += server.recv(REPLY)
    return found


class Files(torch.utils.data.Dataset):
    def __init__(self, paths: list[str], way: str):
        self.paths = paths
        self.way = {"mapped": mapped, "store": asked, "filter": filtered}.get(way, read)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), self.way(self.paths[index])[0] / 255)


def save(folder: str) -> None:
    with open(os.path.join(folder, "saved"), "wb") as file, whyidle.phase("checkpoint"):
        file.write(bytes(SAVED))
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    for group in os.environ.get("WHYIDLE_TEST_GROUPS", "").split():
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    way, workers, folders = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    loss = torch.zeros(())
    if way == "save":
        for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(32, 8)), 8):
            loss = step(batch)
            save(folders[0])
    elif way == "store":
        for batch in torch.utils.data.DataLoader(Files(folders * BATCHES, way), 1, num_workers=workers):
            loss = step(batch)
    else:
        paths = [str(path) for folder in folders for path in sorted(Path(folder).rglob("*.bin"))]
        random.Random(0).shuffle(paths)
        if way == "thread":
            ready: queue.Queue[torch.Tensor] = queue.Queue(1)
            threading.Thread(
                target=lambda: [ready.put(torch.full((1, 8), read(path)[0] / 255)) for path in paths], daemon=True
            ).start()
            for _ in paths:
                loss = step(ready.get())
        elif way == "program":
            for path in paths:
                loss = step(torch.ones(1, 8))
                os.system(f"cat '{path}' >/dev/null; true")
        elif way == "own":
            for path in paths:
                loss = step(torch.full((8,), read(path)[0] / 255))
        else:
            batch_size = 16 if way == "small" else 1
            for batch in torch.utils.data.DataLoader(Files(paths, way), batch_size, num_workers=workers):
                loss = step(batch)
    print(loss.item().hex())


main()
