"""The demo's training job: a plain PyTorch loop without any call to whyidle.

A small byte-level transformer learns Python from the source files of the standard library. It is started by torchrun:

    torchrun --nproc-per-node 2 job.py --seconds 30 --checkpoints DIR --trace DIR
"""

from __future__ import annotations

import argparse
import gc
import os
import sysconfig
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from faults import FAULTS, Fault, Trace  # pyright: ignore[reportMissingImports] - beside this script
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CONTEXT = 64  # bytes
BATCH = 8
WIDTH, LAYERS, HEADS = 128, 2, 4
AGREE_EVERY = 8  # steps


class SourceFiles(Dataset[Tensor]):
    """Pieces of CONTEXT + 1 bytes from every source file of the standard library. Each is read when it is needed."""

    def __init__(self, fault: Fault):
        self.fault = fault
        self.pieces: list[tuple[Path, int]] = []
        root = Path(sysconfig.get_path("stdlib"))
        for path in sorted(root.rglob("*.py")):
            if "site-packages" not in path.parts and path.is_file():
                starts = range(0, path.stat().st_size - CONTEXT, CONTEXT)
                self.pieces += [(path, start) for start in starts]

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        texts = [self._read(*self.pieces[index]) for index in indices]
        self.fault.reading_a_batch()
        batch = [torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in texts]
        self.fault.processing_a_batch()
        return batch

    def _read(self, path: Path, start: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(CONTEXT + 1)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=text.device)
        return self.head(self.layers(self.bytes(text) + self.places, mask=mask, is_causal=True))


def endless(loader: DataLoader[Tensor], sampler: DistributedSampler[Tensor]) -> Iterator[Tensor]:
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from loader


def save(path: Path, state: dict[str, Any], fault: Fault) -> None:
    """Writes a checkpoint atomically."""
    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file:
        torch.save(state, fault.writing(file))
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def agree(totals: Tensor, loss: Tensor, over: bool) -> tuple[float, bool]:
    """Returns the mean loss of all ranks, and whether the time is over for any rank, so that all stop after one
    step. ``totals``, of two elements, is overwritten."""
    torch.stack((loss.detach(), loss.new_tensor(float(over))), out=totals)
    dist.all_reduce(totals)
    total, votes = totals.tolist()
    return total / dist.get_world_size(), votes > 0


def train(args: argparse.Namespace, device: torch.device, totals: Tensor) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    fault = FAULTS[args.inject if rank in args.inject_ranks else "none"](
        args.delay_ms / 1000, Trace(args.trace, "injected", rank)
    )
    waits = Trace(args.trace, "waits", rank)

    dataset = SourceFiles(fault)
    sampler = DistributedSampler(dataset, ranks, rank)
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=1, persistent_workers=True, drop_last=True)
    # A single bucket, so that all gradients go in one all-reduce.
    model = DistributedDataParallel(Transformer().to(device), bucket_cap_mb=1000)
    fault.reducing(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Objects that live until the end do not have to be scanned in each garbage collection.
    gc.collect()
    gc.freeze()
    batches = endless(loader, sampler)
    end = time.monotonic() + args.seconds
    for step in count(1):
        with waits.interval():
            batch = next(batches)
        text = batch.to(device)
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        fault.computing(device)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if step % AGREE_EVERY == 0:
            mean, over = agree(totals, loss, time.monotonic() > end)
            if rank == 0:
                print(f"step {step}: loss {mean:.3f}", flush=True)
            if over:
                break
        if step % args.save_every == 0:
            state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            save(Path(args.checkpoints, f"rank-{rank}.pt"), state, fault)


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--checkpoints", required=True, help="directory")
    parser.add_argument("--save-every", type=int, default=64, help="steps")
    parser.add_argument("--trace", required=True, help="directory for the notes on waits and injected delays")
    parser.add_argument("--inject", choices=FAULTS, default="none")
    parser.add_argument("--inject-ranks", type=lambda text: [int(n) for n in text.split(",") if n], default=[])
    parser.add_argument("--delay-ms", type=float, default=0.0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    # It outlives the group: torch can hang where it destroys a group whose thread drops the last reference to a tensor.
    totals = torch.zeros(2, device=device)
    try:
        train(args, device, totals)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
