"""A loop that reads its samples from files in several directories, or from an object store, in turns.

reads.py [--workers N] [--steps N] [--how read|mmap|memmap|small|get|nfs] [--by loader|loop|thread|unnamed|load]
         PLACE...
"""

from __future__ import annotations

import _thread
import argparse
import ctypes.util
import http.client
import mmap
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
from where_truth import RANK, WORLD, done, model, now, spans, timed, work

WIDTH = 64
_PR_SET_DUMPABLE = 4


def _cold(path: str) -> int:
    """Opens a file of which the page cache has nothing."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return file


def read(path: str, chunk: int) -> tuple[bytes, int]:
    file = _cold(path)
    try:
        parts = []
        while part := os.read(file, chunk):
            parts.append(part)
        return b"".join(parts), len(parts)
    finally:
        os.close(file)


def mapped(path: str, chunk: int) -> tuple[bytes, int]:
    file = _cold(path)
    try:
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as pages:
            pages.madvise(mmap.MADV_RANDOM)
            return b"".join(pages[at : at + mmap.PAGESIZE] for at in range(0, len(pages), mmap.PAGESIZE)), 0
    finally:
        os.close(file)


def sliced(path: str, chunk: int) -> tuple[bytes, int]:
    """A copy of the whole of a mapped file, as `numpy.memmap` makes it."""
    os.close(_cold(path))
    return numpy.memmap(path, dtype=numpy.uint8, mode="r")[:].tobytes(), 0


def small(path: str, chunk: int) -> tuple[bytes, int]:
    """All files of a directory."""
    parts = []
    with os.scandir(path) as entries:
        for entry in entries:
            file = os.open(entry.path, os.O_RDONLY)
            parts.append(os.read(file, os.fstat(file).st_size))
            os.close(file)
    return b"".join(parts), len(parts)


def get(path: str, chunk: int) -> tuple[bytes, int]:
    host, _, name = path.partition("/")
    store = http.client.HTTPConnection(host)
    try:
        store.request("GET", f"/{name}")
        answer = store.getresponse()
        if answer.status != 200:
            raise OSError(f"{path}: {answer.status}")
        return answer.read(), 1
    finally:
        store.close()


_mounted: dict[str, ctypes.c_void_p] = {}
"""Export -> libnfs's context, of this process."""


def nfs(path: str, chunk: int) -> tuple[bytes, int]:
    """Reads with libnfs, in user space."""
    library = ctypes.CDLL(ctypes.util.find_library("nfs"))
    library.nfs_init_context.restype = ctypes.c_void_p
    export, _, name = path.rpartition("/")
    if export not in _mounted:
        _mounted[export] = ctypes.c_void_p(library.nfs_init_context())
        server, _, folder = export.partition("/")
        if library.nfs_mount(_mounted[export], server.encode(), f"/{folder}".encode()):
            raise OSError(f"{export} cannot be mounted")
    context, file, buffer, parts = _mounted[export], ctypes.c_void_p(), ctypes.create_string_buffer(chunk), []
    if library.nfs_open(context, f"/{name}".encode(), os.O_RDONLY, ctypes.byref(file)):
        raise OSError(f"{path} cannot be opened")
    while (count := library.nfs_read(context, file, ctypes.c_uint64(chunk), buffer)) > 0:
        parts.append(buffer.raw[:count])
    library.nfs_close(context, file)
    return b"".join(parts), len(parts)


HOW: dict[str, Callable[[str, int], tuple[bytes, int]]] = {
    "read": read,
    "mmap": mapped,
    "memmap": sliced,
    "small": small,
    "get": get,
    "nfs": nfs,
}


class Files(Dataset[tuple[torch.Tensor, int, torch.Tensor]]):
    def __init__(self, files: list[tuple[int, str]], how: str, chunk: int, decode: float) -> None:
        self.files, self.how, self.chunk, self.decode = files, how, chunk, decode

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, torch.Tensor]:
        place, path = self.files[index]
        begin = now()
        data, calls = HOW[self.how](path, self.chunk)
        span = torch.tensor([place, begin, now(), len(data), calls], dtype=torch.float64)
        work(self.decode)
        begun = torch.frombuffer(bytearray(data[:WIDTH].ljust(WIDTH, b"\0")), dtype=torch.uint8)
        return begun.float() / 255, index % 10, span


Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def batches(dataset: Files, size: int, by: str) -> Iterator[Batch]:
    """Without a loader. ``by``: the loop itself, also with torch.load; a thread that hands them over in a queue; or
    threads that Python's `threading` does not know, as those of libraries.
    """
    made: queue.Queue[Batch] = queue.Queue(2)

    def get_batch(at: int) -> Batch:
        if by == "load":
            place, path = dataset.files[at]
            begin = now()
            inputs, labels = torch.load(path)
            span = torch.tensor([[place, begin, now(), os.path.getsize(path), 0]], dtype=torch.float64)
            return inputs[None, :WIDTH].float() / 255, labels[None], span
        if by == "unnamed":
            done = [_thread.allocate_lock() for _ in range(size)]
            found: dict[int, Any] = {}

            def fetch(place: int) -> None:
                found[place] = dataset[at + place]
                done[place].release()

            for place, lock in enumerate(done):
                lock.acquire()
                _thread.start_new_thread(fetch, (place,))
            for lock in done:
                lock.acquire()
            return default_collate([found[place] for place in range(size)])
        return default_collate([dataset[at + place] for place in range(size)])

    def produce() -> None:
        for at in range(0, len(dataset) - size + 1, size):
            made.put(get_batch(at))

    if by == "thread":
        threading.Thread(target=produce, daemon=True).start()
    for at in range(0, len(dataset) - size + 1, size):
        yield made.get() if by == "thread" else get_batch(at)


def hide(worker: int) -> None:
    """Nobody but root may look at this worker then."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def names(place: str) -> list[str]:
    """What is read in a place. Each rank has other files."""
    if "://" in place:
        store, _, count = place.partition("://")[2].rpartition("*")
        found = [f"{store}{number:04}" for number in range(int(count))]
    else:
        found = sorted(str(path) for path in Path(place).iterdir() if path.name != "lost+found")
    return found[RANK::WORLD] if len(found) >= WORLD else found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("places", nargs="+")
    parser.add_argument("--how", choices=HOW, default="read")
    parser.add_argument("--by", choices=("loader", "loop", "thread", "unnamed", "load"), default="loader")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0, help="0: each file once")
    parser.add_argument("--work", type=float, default=0.01, help="CPU seconds of a step")
    parser.add_argument("--decode", type=float, default=0.0, help="CPU seconds of a sample, in who reads it")
    parser.add_argument("--chunk", type=int, default=1 << 20)
    parser.add_argument("--hidden", action="store_true", help="workers of which /proc tells their user nothing")
    args = parser.parse_args()
    listed = [names(place) for place in args.places]
    count = args.steps * args.batch or sum(map(len, listed))
    turns = [(at % len(listed), at // len(listed)) for at in range(count)]
    files = [(place, listed[place][turn % len(listed[place])]) for place, turn in turns]
    net = model(WIDTH)
    if WORLD > 1:
        torch.distributed.init_process_group("gloo")
        net = nn.parallel.DistributedDataParallel(net)
    adapt = torch.optim.SGD(net.parameters(), 0.05)
    dataset = Files(files, args.how, args.chunk, args.decode)
    loader: Iterable[Batch] = DataLoader(
        dataset, args.batch, num_workers=args.workers, worker_init_fn=hide if args.hidden else None
    )
    if args.by != "loader":
        loader = batches(dataset, 1 if args.by == "load" else args.batch, args.by)
    loss = torch.zeros(())
    begun = now()
    for inputs, labels, read_at in timed(loader):
        for place, begin, end, size, calls in read_at.tolist():
            spans[args.places[int(place)]].append((begin, end, size, calls))
        loss = nn.functional.cross_entropy(net(inputs), labels)
        work(args.work)
        adapt.zero_grad()
        loss.backward()
        adapt.step()
    done(begun, loss)
    if WORLD > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
