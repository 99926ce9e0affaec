"""Checks of difficult situations: a full launch queue, captures, forks, and long runs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import whyidle

from .loops import attached, batch, blocks, ledgers, read_only, step_on
from .rig import Pairs, Rig
from .rows import Row, at_most, compare, figure, skipped
from .waits import Slow

# -- a full launch queue

READER = Path(__file__).with_name("reader.py")
QUEUE_MS = 400.0
PHASES_IN_QUEUE = 1500


def queue(rig: Rig, fast: bool) -> Iterator[Row]:
    """Checks that the ledger stays readable while a full launch queue blocks the host in the middle of boundaries."""
    if rig.simulated:
        rig.sim.set_queue_limit(256)
    rounds = 2 if fast else 6
    alone = _fill(rig, rounds)
    with ledgers() as folder:
        os.environ["WHYIDLE_DIR"] = str(folder)
        whyidle.attach()
        model = blocks(rig, Pairs(rig), 1, 0.0, 0.0)
        step_on(model, torch.optim.SGD(model.parameters(), 0.01), batch(rig))
        (path,) = folder.iterdir()
        reader = subprocess.Popen(
            [sys.executable, str(READER), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert reader.stdout is not None
            reader.stdout.readline()  # wait until it has begun
            ours = _fill(rig, rounds)
            told = json.loads(reader.communicate("", timeout=60)[0])
        finally:
            reader.kill()
            reader.wait()
            rig.synchronize()
            whyidle.detach()
        account = read_only(folder, rig.simulated)
    if rig.simulated:
        rig.sim.set_queue_limit(1024)
    yield figure("host blocked in one go, without whyidle", alone.blocked_ms, "ms")
    blocked = Row("host blocked in one go, attached", 50.0, ours.blocked_ms, "ms", None, ours.blocked_ms > 50.0)
    blocked.note = "at least: else the queue was not full"
    yield blocked
    yield figure("longest stop of another thread, without whyidle", alone.stopped_ms, "ms", "the GIL")
    why = "in some versions of torch, Event.record() holds the GIL"
    yield figure("longest stop of another thread, attached", ours.stopped_ms, "ms", why)
    yield Row("reads of the ledger meanwhile", 20, told["reads"], "count", None, told["reads"] >= 20, "at least")
    yield at_most("torn", rig.simulated, "torn reads", told["torn"], "count")
    yield figure("longest read", told["longest_ms"], "ms")
    yield from account.sound("full queue")


class _Filled:
    blocked_ms = 0.0
    stopped_ms = 0.0


def _fill(rig: Rig, rounds: int) -> _Filled:
    """Launches more boundaries and kernels than the queue holds, after a long sleep. Measures the longest of them."""
    filled, stop = _Filled(), threading.Event()

    def tick() -> None:
        while not stop.is_set():
            begun = time.perf_counter()
            time.sleep(0.001)
            filled.stopped_ms = max(filled.stopped_ms, 1e3 * (time.perf_counter() - begun) - 1)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    x = torch.zeros(8, device=rig.device)
    for _ in range(rounds):
        rig.sleep(QUEUE_MS)
        for _ in range(PHASES_IN_QUEUE):
            begun = time.perf_counter()
            with whyidle.phase("eval"):
                x.add_(1)
            filled.blocked_ms = max(filled.blocked_ms, 1e3 * (time.perf_counter() - begun))
        rig.synchronize()
        whyidle.step()
    stop.set()
    ticker.join()
    return filled


# -- captures

REPLAYS = 10
REPLAYED_MS = 40.0
"""Work after each replay. The few milliseconds of the capture, whose phases cannot be timed, are a small share then."""


def captures(rig: Rig, fast: bool) -> Iterator[Row]:
    """Captures a step with phases in it. With whyidle the losses must be the same, and no capture may fail."""
    plain = _captured(rig)
    losses: list[float] = []
    account = attached(rig, lambda: losses.extend(_captured(rig)))
    yield compare("losses", rig.simulated, "captured step, last loss", plain[-1], losses[-1], "loss")
    # On CUDA, the hook of graphs pauses the accounting during a capture. The simulated device has no such graphs.
    count, known = account.ledger.unmeasured, 2 if rig.simulated else 0
    yield Row("boundaries in the capture", known, count, "count", None, count >= 2 if known else not count)
    yield from account.sound("capture", unmeasured=False)
    if rig.simulated:
        faults = rig.sim.counters()
        bad = sum(count for name, count in faults.items() if name.endswith("in_capture"))
        yield at_most("capture", True, "calls that would end a capture", bad, "count")
        yield skipped('torch.compile(mode="reduce-overhead")', "needs CUDA graphs")
        return
    if importlib.util.find_spec("triton") is None:
        yield skipped('torch.compile(mode="reduce-overhead")', "triton is not installed")
        return
    plain = _compiled(rig)
    losses.clear()
    account = attached(rig, lambda: losses.extend(_compiled(rig)))
    yield compare("losses", False, "reduce-overhead, last loss", plain[-1], losses[-1], "loss")
    yield from account.sound("reduce-overhead", unmeasured=False)


def _captured(rig: Rig) -> list[float]:
    """Trains three steps, captures the fourth, and replays it. Returns the losses."""
    model = blocks(rig, Pairs(rig), 2, 0.0, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = batch(rig)
    side = rig.stream()
    side.wait_stream(rig.current_stream())
    with rig.on(side):
        for _ in range(3):
            _capturable(model, optimizer, x)
    rig.current_stream().wait_stream(side)
    rig.synchronize()
    context, replay = _graph(rig)
    with context:
        loss = _capturable(model, optimizer, x)
    whyidle.step()  # the next boundary with an event: what lies between it and the capture is unattributed
    losses = []
    for _ in range(REPLAYS):
        replay()
        rig.sleep(REPLAYED_MS)
        losses.append(loss.item())
        whyidle.step()
    return losses


def _capturable(model: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
    with whyidle.phase("eval"):
        y = model(x)
    loss = y.square().mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    return loss


def _graph(rig: Rig) -> tuple[AbstractContextManager[Any], Callable[[], None]]:
    if rig.simulated:
        graph = rig.sim.Graph()
        return graph.capture(), graph.replay
    graph = torch.cuda.CUDAGraph()
    return torch.cuda.graph(graph), graph.replay


def _compiled(rig: Rig) -> list[float]:
    torch._dynamo.reset()
    torch.manual_seed(7)
    model: Any = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).to(rig.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    compiled = torch.compile(model, mode="reduce-overhead")
    x = batch(rig)
    return [step_on(compiled, optimizer, x).item() for _ in range(REPLAYS)]


# -- a host that waits


def spin(rig: Rig, fast: bool) -> Iterator[Row]:
    """Reports how much CPU time a host uses while it waits for its device: CUDA may spin."""
    x = batch(rig)
    waits: dict[str, Callable[[], Any]] = {
        "torch.cuda.synchronize()": rig.synchronize,
        "tensor.item()": lambda: (x + 1).sum().item(),
        "event.synchronize()": lambda: rig.mark().synchronize(),
    }
    if not rig.simulated:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=rig.device)
        waits["dist.barrier() of NCCL"] = dist.barrier
    for what, wait in waits.items():
        wait()
        rig.synchronize()
        rig.sleep(200.0)
        begun, used = time.perf_counter(), time.thread_time()
        wait()
        wall, used = time.perf_counter() - begun, time.thread_time() - used
        rig.synchronize()
        yield figure(f"{what}: CPU time of the host", used / wall, "ratio", f"in {1e3 * wall:.0f} ms")
    if dist.is_initialized():
        dist.destroy_process_group()


# -- a fork


def fork(rig: Rig, fast: bool) -> Iterator[Row]:
    """Forks after 1,000 events. The child must end without an error, and the parent's account must continue."""
    codes: list[int] = []
    steps = 20 if fast else 100

    def train() -> None:
        model = blocks(rig, Pairs(rig), 1, 1.0, 1.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        x = batch(rig)
        for number in range(steps):
            for _ in range(1000 // steps):
                with whyidle.phase("eval"):
                    pass
            step_on(model, optimizer, x)
            if number % (steps // 2) == steps // 2 - 1:
                codes.append(_child())
        for each in DataLoader(Slow(steps, 0.0), batch_size=1, num_workers=1, multiprocessing_context="fork"):
            step_on(model, optimizer, each.to(rig.device))

    account = attached(rig, train)
    yield Row("exit status of forked children", 0, max(codes), "status", 0, not any(codes), f"{len(codes)} children")
    made = account.ledger.steps
    yield Row("steps of the parent", 2 * steps, made, "count", 1, abs(made - 2 * steps) <= 1)
    yield from account.sound("fork")


def _child() -> int:
    """Forks a process that uses our hooks on the CPU, as a data worker does. Returns its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with whyidle.phase("eval"):
                torch.ones(4).sum()
            for _ in DataLoader(Slow(2, 0.0), batch_size=1):
                whyidle.step()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return 124


# -- drift


def drift(rig: Rig, fast: bool, minutes: float) -> Iterator[Row]:
    """Checks that device time stays right on the host's clock, with a device that is never idle.

    On such a device, only events show how far it is. The host may see an event late, but never early. So the event
    that it saw soonest counts, of several at the start and of several at the end.
    """
    steps = max(30, min(500, int(minutes * 60 / 0.1)))
    work_ms = minutes * 60e3 / steps
    seen: list[int] = []
    events: list[Any] = []
    model = blocks(rig, Pairs(rig), 1, work_ms, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = batch(rig)

    def wait(event: Any) -> None:
        event.synchronize()
        seen.append(time.monotonic_ns())

    def train() -> None:
        for _ in range(3):
            step_on(model, optimizer, x)
            rig.synchronize()
            with whyidle.phase("eval"):  # a boundary on an idle device: the host knows when the device passes it
                pass
        for number in range(steps):
            step_on(model, optimizer, x)
            events.append(rig.mark())
            if number >= 2:
                wait(events[number - 2])
        for event in events[-2:]:
            wait(event)

    if rig.simulated:
        rig.sim.set_real_time(True)  # otherwise the host may see an event as unfinished that is over
    account = attached(rig, train)
    if rig.simulated:
        rig.sim.set_real_time(False)
    ends = [step.end_ns for step in account.ledger.ring[-steps:]]
    errors = [(end - at) / 1e6 for end, at in zip(ends, seen, strict=True)]
    part = max(10, steps // 10)
    first, last = max(errors[:part]), max(errors[-part:])
    elapsed_ms = (seen[-1] - seen[0]) / 1e6
    raw = sum(events[at].elapsed_time(events[at + 1]) for at in range(steps - 1))
    yield figure("elapsed", elapsed_ms / 1e3, "s")
    yield figure(
        "the device's own clock, against the host's", 1e6 * (raw / elapsed_ms - 1), "ppm", "raw events, end to end"
    )
    yield compare("drift", rig.simulated, "device time on the host's clock", 0.0, (last - first) / elapsed_ms, "ratio")
    yield figure("where a step ends, before the host sees it", -last, "ms")
    yield from account.sound("drift")
