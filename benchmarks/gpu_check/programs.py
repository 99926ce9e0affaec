"""Training loops as people write them. Each runs on one GPU; `marks` notes when the loop waits for a batch or saves.

A function of the table builds a model and returns a function that runs one round of its loop. It builds the same one
each time: weights and data come from fixed seeds.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from .rig import Rig

Marks = Callable[[str], AbstractContextManager[None]]
"""``with marks("data")``: the loop asks for a batch. ``with marks("save")``: it saves."""
Round = Callable[[], Any]


class Program(NamedTuple):
    make: Callable[[Rig, Marks], tuple[nn.Module, Round]]
    needs: str = ""
    """A package that it needs: torchvision or triton."""
    says: tuple[str, str] = ("", "")
    """The family of its verdict (or one of several), and a word that its sentences have."""


def layers(rig: Rig, count: int, width: int) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(count))).to(rig.device)


def data(rig: Rig, rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1)).to(rig.device)


def trained(
    model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer | None = None
) -> tuple[nn.Module, Round]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, step


def launch_bound(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    return trained(layers(rig, 200, 64), data(rig, 8, 64))


def busy(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    return trained(layers(rig, 16, 4096), data(rig, 1024, 4096))


def reads_loss(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    model, step = trained(layers(rig, 20, 2048), data(rig, 1024, 2048))
    return model, lambda: step().item()


class Whole(Dataset[torch.Tensor]):
    """Whole batches that take ``seconds`` each."""

    def __init__(self, rows: int, width: int, seconds: float):
        self._batch = torch.randn(rows, width, generator=torch.Generator().manual_seed(1))
        self._seconds = seconds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return self._batch


def slow_loader(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    return behind_loader(rig, marks, layers(rig, 8, 2048), DataLoader(Whole(1024, 2048, 0.01), batch_size=None))


def behind_loader(rig: Rig, marks: Marks, model: nn.Module, loader: DataLoader[Any]) -> tuple[nn.Module, Round]:
    optimizer, batches = torch.optim.SGD(model.parameters(), 1e-3), iter(loader)

    def step() -> None:
        with marks("data"):
            x = next(batches)
        model(x.to(rig.device, non_blocking=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def graph_behind_loader(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """A whole step in a CUDA graph, behind a slow loader."""
    model = layers(rig, 16, 2048)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    batches = iter(DataLoader(Whole(1024, 2048, 0.01), batch_size=None))
    static = torch.zeros(1024, 2048, device=rig.device)

    def work() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(static).square().mean().backward()
        optimizer.step()

    side = rig.stream()
    side.wait_stream(rig.current_stream())
    with rig.on(side):
        for _ in range(3):
            work()
    rig.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def step() -> None:
        with marks("data"):
            x = next(batches)
        static.copy_(x, non_blocking=True)
        graph.replay()

    return model, step


def unpinned(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """Copies of big batches from memory that is not pinned."""
    model = layers(rig, 8, 1024)
    batches = itertools.cycle([data_on_host(32768, 1024) for _ in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        model(next(batches).to(rig.device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def data_on_host(rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1))


def evaluates(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """Ten steps, then an evaluation on data in memory."""
    model, step = trained(layers(rig, 16, 1024), data(rig, 512, 1024))
    held_out = [data(rig, 512, 1024) for _ in range(4)]

    def turn() -> float:
        for _ in range(10):
            step()
        model.eval()
        with torch.no_grad():
            losses = [model(x).square().mean() for x in held_out * 4]
        model.train()
        return torch.stack(losses).mean().item()

    return model, turn


def side_stream(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """The loop trains on a stream that is not the default one."""
    side = rig.stream()
    with rig.on(side):
        model, step = trained(layers(rig, 40, 1024), data(rig, 256, 1024))
    rig.synchronize()

    def on_side() -> None:
        with rig.on(side):
            step()

    return model, on_side


def copies_ahead(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """The next batch is copied on another stream."""
    model = layers(rig, 16, 2048)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    host = data_on_host(4096, 2048).pin_memory()
    side = rig.stream()
    ahead: list[torch.Tensor] = []

    def fetch() -> None:
        with rig.on(side):
            ahead.append(host.to(rig.device, non_blocking=True))

    fetch()

    def step() -> None:
        rig.current_stream().wait_stream(side)
        x = ahead.pop()
        rig.keep(x, rig.current_stream())
        fetch()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def amp(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    model, x = layers(rig, 24, 2048), data(rig, 2048, 2048)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    scaler = torch.amp.GradScaler(rig.device.type)

    def step() -> None:
        with torch.autocast(rig.device.type, torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return model, step


def _compiled(mode: str) -> Callable[[Rig, Marks], tuple[nn.Module, Round]]:
    def make(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
        torch._dynamo.reset()
        model = layers(rig, 32, 512)
        _, step = trained(torch.compile(model, mode=mode), data(rig, 256, 512))  # pyright: ignore[reportArgumentType]
        return model, step

    return make


def ddp(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    _one_rank(rig)
    return trained(nn.parallel.DistributedDataParallel(layers(rig, 24, 2048)), data(rig, 1024, 2048))


def _sharded(rig: Rig) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _one_rank(rig)
    model, mesh = layers(rig, 24, 2048), init_device_mesh(rig.device.type, (1,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp2(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    return trained(_sharded(rig), data(rig, 1024, 2048))


def fsdp2_clips(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    model, x = _sharded(rig), data(rig, 4096, 2048)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def _one_rank(rig: Rig) -> None:
    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=rig.device)


def saves(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """A save of 128 MiB every 20 steps."""
    model, step = trained(layers(rig, 8, 2048), data(rig, 4096, 2048))

    def turn() -> None:
        for _ in range(20):
            step()
        with marks("save"), tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), os.path.join(folder, "model.pt"))

    return model, turn


class Pictures(Dataset[Any]):
    """Pictures that are decoded slowly enough for a few workers to be late."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from torchvision.transforms import v2  # pyright: ignore[reportMissingImports]

        picture = torch.randint(
            0, 256, (3, 500, 375), dtype=torch.uint8, generator=torch.Generator().manual_seed(index)
        )
        cut = v2.functional.resize(picture[:, 20:420, 20:340], [224, 224], antialias=True)
        return v2.functional.to_dtype(cut, torch.float32, scale=True), index % 1000


def resnet(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """torchvision's ResNet-50 behind a loader with workers."""
    from torchvision.models import resnet50  # pyright: ignore[reportMissingImports]

    torch.manual_seed(7)
    model = resnet50().to(rig.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    workers = max(1, min(6, (os.cpu_count() or 2) - 2))
    batches = iter(DataLoader(Pictures(), batch_size=64, num_workers=workers, pin_memory=True))

    def step() -> None:
        with marks("data"):
            x, y = next(batches)
        x = x.to(rig.device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast(rig.device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y.to(rig.device, non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


PROGRAMS: dict[str, Program] = {
    "200 tiny layers": Program(launch_bound),
    "always busy": Program(busy),
    "reads its loss": Program(reads_loss),
    "slow loader": Program(slow_loader),
    "CUDA graph behind a slow loader": Program(graph_behind_loader),
    "unpinned copies": Program(unpinned),
    "evaluates between steps": Program(evaluates),
    "trains on another stream": Program(side_stream),
    "copies ahead on another stream": Program(copies_ahead),
    "GradScaler and clipping": Program(amp),
    "torch.compile": Program(_compiled("default"), "triton"),
    "torch.compile, reduce-overhead": Program(_compiled("reduce-overhead"), "triton"),
    "DDP, one rank of NCCL": Program(ddp),
    "FSDP2, one rank of NCCL": Program(fsdp2),
    "FSDP2 clips gradients": Program(fsdp2_clips),
    "torch.save in the loop": Program(saves),
    "ResNet-50 behind a loader": Program(resnet, "torchvision"),
}


class Spans:
    """Marks as spans of time.time_ns(), which is also the clock of Kineto."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[int, int]]] = {"data": [], "save": []}

    @contextmanager
    def __call__(self, kind: str) -> Iterator[None]:
        begun = time.time_ns()
        try:
            yield
        finally:
            self.found[kind].append((begun, time.time_ns()))
