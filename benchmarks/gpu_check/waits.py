"""Checks waits of known length: for a batch, for collectives of DDP, FSDP1 and FSDP2, and for a late rank."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import whyidle
from whyidle.ledger.reader import read_ledger

from . import delayed
from .loops import DATA, WAITS, WIDTH, Account, Known, attached, batch, blocks, ledgers, step_on
from .rig import Pairs, Rig
from .rows import Row, at_most, compare, figure

WARM = 3
"""Steps before the measured ones. In them DDP rebuilds its buckets and FSDP makes its streams."""
LEAD_MS = 40.0
"""Milliseconds of work at the start of each step, so that the host is ahead of the device in the measured part."""


# -- waiting for a batch


class Slow(Dataset[torch.Tensor]):
    """A dataset whose samples take ``seconds`` each."""

    def __init__(self, count: int, seconds: float):
        self._count, self._seconds = count, seconds

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.ones(WIDTH) * index


def idle(rig: Rig, fast: bool) -> Iterator[Row]:
    """Checks the wait for a batch while work of known length is queued. The truth is from raw events at `next()`.

    They are outside of whyidle's boundaries, so what two of them cost the host may be missing.
    """
    steps = 5 if fast else 20
    for work_ms, wait_ms in ((0.0, 10.0), (30.0, 10.0), (10.0, 30.0)):
        busy, waits, marks_s = Pairs(rig), Pairs(rig), list[float]()
        model = blocks(rig, busy, 1, work_ms, 0.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def train(
            model: Any = model,
            optimizer: Any = optimizer,
            waits: Pairs = waits,
            marks_s: list[float] = marks_s,
            ms: float = wait_ms,
        ) -> None:
            batches = iter(DataLoader(Slow(WARM + steps, ms / 1e3), batch_size=1))
            for _ in range(WARM + steps):
                begun = rig.mark()
                x = next(batches)
                before = time.perf_counter()
                waits.add(begun, rig.mark())
                marks_s.append(time.perf_counter() - before)
                step_on(model, optimizer, x.to(rig.device))

        account = attached(rig, train)
        known = statistics.median(waits.each_ms()[WARM:])
        what = f"loader waits {wait_ms:g} ms, {work_ms:g} ms of work queued"
        two_marks = 2e3 * statistics.median(marks_s[WARM:])
        yield compare("data", rig.simulated, what, known, account.ms(DATA, steps), "ms/step", slack=two_marks)
        yield from account.sound(what)


# -- exposed communication


class Shape(NamedTuple):
    """A model, and a function that runs a step of it up to the end of the backward pass."""

    model: nn.Module
    forward_backward: Callable[[torch.Tensor], None]


def _usual(model: nn.Module) -> Shape:
    def run(x: torch.Tensor) -> None:
        model(x).square().mean().backward()

    return Shape(model, run)


def _plain(layers: nn.Sequential) -> Shape:
    """A loop that starts an all-reduce itself, runs the blocks, and then waits for the all-reduce."""
    extra = torch.ones(1024, device=next(layers.parameters()).device)

    def run(x: torch.Tensor) -> None:
        work: Any = dist.all_reduce(extra, op=dist.ReduceOp.MAX, async_op=True)
        layers(x).square().mean().backward()
        work.wait()

    return Shape(layers, run)


def _ddp(layers: nn.Sequential) -> Shape:
    return _usual(nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.001))


def _fsdp1(layers: nn.Sequential) -> Shape:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    # FSDP1's rate limiter is off: it makes the host wait for the device, and the host would lose its lead.
    device = next(layers.parameters()).device
    policy = ModuleWrapPolicy({Known})
    return _usual(
        FullyShardedDataParallel(
            layers, auto_wrap_policy=policy, device_id=device, use_orig_params=True, limit_all_gathers=False
        )
    )


def _sharded(root: nn.Module, layers: nn.Sequential) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(layers.parameters()).device.type, (delayed.RANKS,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(root, mesh=mesh)
    return root


def _fsdp2(layers: nn.Sequential) -> Shape:
    return _usual(_sharded(layers, layers))


def _root_loss(layers: nn.Sequential) -> Shape:
    """FSDP2 with a root module that returns the loss itself, so that the backward pass starts inside the root."""

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layers(x).square().mean()}

    model = _sharded(Root(), layers)
    return Shape(model, lambda x: model(x)["loss"].backward())


def _reentrant(layers: nn.Sequential) -> Shape:
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=True)  # pyright: ignore[reportAssignmentType]
            return x

    return _usual(nn.parallel.DistributedDataParallel(Recomputed(), static_graph=True, bucket_cap_mb=0.001))


SHAPES: dict[str, Callable[[nn.Sequential], Shape]] = {
    "all-reduce": _plain,
    "DDP": _ddp,
    "FSDP1": _fsdp1,
    "FSDP2": _fsdp2,
    "FSDP2, root returns the loss": _root_loss,
    "DDP, reentrant checkpoint": _reentrant,
}
LAYERS = 4
LINKS = (("no work to hide behind", 4.0, 0.0), ("partly hidden", 12.0, 3.0), ("mostly hidden", 2.0, 6.0))
"""Name, ms of a collective, ms of work in a layer's forward pass. The backward pass has twice as much work."""
PLAIN_LONGER = 6
"""The factor for the only collective of the plain loop. It overlaps with all of the work, which hides about half."""


class Seen(NamedTuple):
    """Milliseconds per step. They are medians, so that a stall of the host in one step does not count as a wait."""

    gaps: float
    """The time of the home stream in the forward and backward pass that was neither work nor sleep."""
    carried: float
    """The time that the collectives took."""
    account: Account


def exposed(rig: Rig, fast: bool) -> Iterator[Row]:
    """Checks exposed communication with two ranks in one process, whose collectives take a set time.

    The truth is from raw events around the passes and around their work.
    """
    link = delayed.install(rig)
    links = LINKS[1:2] if fast else LINKS
    for shape in SHAPES:
        floor = 0.0
        if not rig.simulated:
            # The time of a step outside known work and waits: small kernels, copies. Virtual kernels take no time.
            floor = _train(rig, link, shape, 0.0, 3.0, fast).gaps
        for name, link_ms, work_ms in links:
            link_ms *= PLAIN_LONGER if shape == "all-reduce" else 1
            seen = _train(rig, link, shape, link_ms, work_ms, fast)
            known = seen.gaps - floor
            hidden = 1 - known / seen.carried
            what = f"{shape}, {name}"
            yield compare(
                *("exposed", rig.simulated, what, known, seen.account.ms(WAITS, _steps(fast)), "ms/step"),
                f"{seen.carried:.1f} ms of collectives, {hidden:.0%} hidden",
                slack=0.02 * known,
            )
            yield from seen.account.sound(what)
    dist.destroy_process_group()


def _steps(fast: bool) -> int:
    return 5 if fast else 9


def _train(rig: Rig, link: delayed.Link, shape: str, link_ms: float, work_ms: float, fast: bool) -> Seen:
    steps = _steps(fast)
    busy, passes, lead = Pairs(rig), Pairs(rig), Pairs(rig)
    link.ms = 0.0
    made = SHAPES[shape](blocks(rig, busy, LAYERS, work_ms, 2 * work_ms))
    optimizer = torch.optim.SGD(made.model.parameters(), 0.01)
    x = batch(rig)

    def train() -> None:
        for number in range(WARM + steps):
            link.ms = link_ms
            if number == WARM:
                link.took.clear()
            with lead:
                rig.sleep(LEAD_MS)
            with passes:
                made.forward_backward(x)
            optimizer.step()
            optimizer.zero_grad()
            busy.next_step()
        link.ms = 0.0

    account = attached(rig, train)
    worked = busy.steps_ms()
    gaps = [spent - known for spent, known in zip(passes.each_ms(), worked, strict=True)]
    return Seen(statistics.median(gaps[WARM:]), link.took.total_ms() / steps, account)


# -- a rank that is late

LATE_MS = 30.0


def late(rig: Rig, fast: bool) -> Iterator[Row]:
    """Checks a late rank: two processes on one device, with gloo and the real exchange. One of them does more work."""
    with ledgers() as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(WHYIDLE_DIR=str(folder), WHYIDLE_RUN="late", GLOO_SOCKET_IFNAME="lo")
        command = [sys.executable, sys.argv[0], "--device", rig.kind, "--child", "late_rank", *(["--quick"] * fast)]
        other = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE)
        try:
            own = late_rank(rig, fast, 0, port)
            told = [own, json.loads(other.communicate(timeout=60)[0] or "{}")]
        finally:
            other.kill()
            other.wait()
        if not all(told):
            raise RuntimeError("the other rank failed: see stderr")
        report = whyidle_report(str(folder))
        faults = sum(read_ledger(str(path)).faults for path in folder.iterdir())
    first, second = sorted(report["per_rank"], key=lambda rank: rank["rank"])
    known = told[1]["worked_ms"] - told[0]["worked_ms"]
    steps = told[0]["steps"]
    straggler = first["seconds"]["straggler"] * 1e3 / steps
    what = f"a rank late by {LATE_MS:g} ms"
    yield compare("late", rig.simulated, f"{what}: straggler of the other", 1.0, straggler / known, "ratio")
    moved = sum(rank["seconds"]["network"] for rank in (first, second))
    yield figure(f"{what}: network, mean of both", moved * 1e3 / steps / 2, "ms/step")
    unsplit = sum(rank["seconds"]["collective"] for rank in (first, second))
    yield figure(f"{what}: not split", unsplit * 1e3 / steps / 2, "ms/step")
    named = [one["rank"] for one in report["verdict"]["late_ranks"][:1]]
    yield Row(f"{what}: late rank named", 1, named[0] if named else None, "rank", 0, named == [1])
    yield at_most("faults", rig.simulated, f"{what}: faults", faults, "count")


def late_rank(rig: Rig, fast: bool, rank: int, port: int) -> dict[str, Any]:
    """Runs one rank of ``late``. Its host is ahead of its device."""
    backend = "cpu:gloo,sim:sim" if rig.simulated else "gloo"
    where, most = f"tcp://127.0.0.1:{port}", timedelta(seconds=60)
    dist.init_process_group(backend, init_method=where, rank=rank, world_size=2, timeout=most)
    if rig.simulated:
        rig.sim.set_collective_time(2.0)
    whyidle.attach()
    busy, late_by = Pairs(rig), Pairs(rig)
    model = nn.parallel.DistributedDataParallel(blocks(rig, busy, 2, 4.0, 8.0))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = batch(rig)
    steps = 15 if fast else 60
    for _ in range(steps):
        with late_by:
            rig.sleep(LATE_MS if rank else 0.0)
        step_on(model, optimizer, x)
    rig.synchronize()
    dist.barrier()
    whyidle.detach()
    dist.destroy_process_group()
    # Two processes that share a GPU take turns on it, so the same work takes longer while the other one has work, too.
    return {"worked_ms": (late_by.total_ms() + busy.total_ms()) / steps, "steps": steps}


def whyidle_report(folder: str) -> dict[str, Any]:
    """The output of `whyidle report --json` for a folder of ledgers, also of short trainings."""
    short = ("--least-steps=0", "--least-seconds=0", "--most-spread=inf")
    command = [sys.executable, "-m", "whyidle.cli.main", "report", "--json", f"--dir={folder}", *short]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"whyidle report: {done.stderr[-500:]}")
    return json.loads(done.stdout)
