"""What boundaries cost a training step: host time, the training thread's CPU time, and device time. In pairs."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import whyidle
from whyidle.ledger.causes import PHASE
from whyidle.torch_hooks import accelerators, attach

from . import delayed
from .loops import batch, blocks, ledgers
from .rig import Pairs, Rig
from .rows import Row, at_most, figure
from .waits import SHAPES

COUNTS = (0, 20, 300, 800)
"""Boundaries a step, besides those that the hooks make in any loop."""
LAYERS = 10
LEAD_MS = 30.0
_EVAL = PHASE["eval"]


class Times(NamedTuple):
    """The times of one step, as medians of a block of steps."""

    host_us: float
    cpu_us: float
    """Of the training thread."""
    device_us: float
    """Raw events around a step whose host is ahead; 0 where that was not measured."""


class Costs(NamedTuple):
    """What boundaries add to a step: the median over pairs, and between which values four fifths of the pairs lie."""

    boundaries: int
    plain: Times
    host_us: float
    cpu_us: float
    device_us: float
    spread: str


class Loop:
    """Ten small layers, and boundaries between them."""

    def __init__(self, rig: Rig, work_ms: float = 0.0):
        self._rig = rig
        self._layers = blocks(rig, Pairs(rig), LAYERS, work_ms / LAYERS, 0.0)
        self._optimizer = torch.optim.SGD(self._layers.parameters(), 0.01)
        self._x = batch(rig)

    def step(self, boundaries: int) -> None:
        # 2 boundaries each; what does not divide by the layers comes at the last one.
        brackets, rest = divmod(boundaries // 2, LAYERS)
        machine, x = attach._session.machine, self._x
        for layer in self._layers:
            x = layer(x)
            for _ in range(brackets):
                machine.leave(machine.enter(_EVAL))
        for _ in range(rest):
            machine.leave(machine.enter(_EVAL))
        x.square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def block(self, steps: int, boundaries: int, lead: bool) -> Times:
        rig = self._rig
        host, cpu, device = [], [], []
        for _ in range(steps):
            pairs = Pairs(rig)
            if lead:
                rig.sleep(LEAD_MS)
            begun, spent = time.perf_counter_ns(), time.thread_time_ns()
            if lead:
                with pairs:
                    self.step(boundaries)
            else:
                self.step(boundaries)
            cpu.append((time.thread_time_ns() - spent) / 1e3)
            host.append((time.perf_counter_ns() - begun) / 1e3)
            rig.synchronize()
            device.append(1e3 * pairs.total_ms())
        return Times(*(statistics.median(each) for each in (host, cpu, device)))


@contextmanager
def recording() -> Iterator[None]:
    with ledgers() as folder:
        os.environ["WHYIDLE_DIR"], os.environ["WHYIDLE_RUN"] = str(folder), "cost"
        whyidle.attach()
        try:
            yield
            writer = attach._session.writer
            if attach._session.machine.device is None or writer is None:
                raise RuntimeError("the hooks took the rank for one on a CPU")
            (path,) = folder.iterdir()
        finally:
            whyidle.detach()
        from .loops import read_only

        faults = read_only(folder, False).ledger.faults
        if faults:
            raise RuntimeError(f"the hooks counted {faults} faults: what was timed was their handling ({path})")


def step_costs(rig: Rig, rounds: int, steps: int, lead: bool = False) -> list[Costs]:
    """Blocks of steps without whyidle and with some boundaries each, in turn (A B A B ...).

    ``lead``: the host is ahead of the device, so that raw events around a step tell its device time.
    """
    loop = Loop(rig, 5.0 if lead else 0.0)
    loop.block(steps, 0, lead)
    plain: dict[int, list[Times]] = {count: [] for count in COUNTS}
    hooked: dict[int, list[Times]] = {count: [] for count in COUNTS}
    for _ in range(rounds):
        for count in COUNTS:
            plain[count].append(loop.block(steps, 0, lead))
            with recording():
                loop.block(5, count, lead)  # makes the events
                hooked[count].append(loop.block(steps, count, lead))
    return [_costs(count, plain[count], hooked[count]) for count in COUNTS]


def _costs(count: int, plain: list[Times], hooked: list[Times]) -> Costs:
    def added(name: str) -> list[float]:
        return [getattr(b, name) - getattr(a, name) for a, b in zip(plain, hooked, strict=True)]

    host = sorted(added("host_us"))
    return Costs(
        count,
        Times(*(statistics.median(each) for each in zip(*plain, strict=True))),
        statistics.median(host),
        statistics.median(added("cpu_us")),
        statistics.median(added("device_us")),
        f"{host[len(host) // 10]:.0f} .. {host[-1 - len(host) // 10]:.0f}",
    )


def per_boundary(costs: list[Costs], name: str) -> float:
    """Microseconds a boundary: the slope from no boundaries to the most."""
    first, last = costs[0], costs[-1]
    return (getattr(last, name) - getattr(first, name)) / (last.boundaries - first.boundaries)


def fsdp2_boundaries(rig: Rig, layers: int) -> int:
    """Events that the hooks record in one step of FSDP2, by count: two ranks in one process."""
    delayed.install(rig)
    made = SHAPES["FSDP2"](blocks(rig, Pairs(rig), layers, 0.2, 0.4))
    optimizer = torch.optim.SGD(made.model.parameters(), 0.01)
    x = batch(rig)
    counted: list[int] = []
    original = accelerators.DeviceEvents.record

    def record(events: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(events)

    calls = 0
    accelerators.DeviceEvents.record = record  # type: ignore[method-assign]
    try:
        with recording():
            for _ in range(6):
                before = calls
                made.forward_backward(x)
                optimizer.step()
                optimizer.zero_grad()
                counted.append(calls - before)
            rig.synchronize()
    finally:
        accelerators.DeviceEvents.record = original  # type: ignore[method-assign]
    return int(statistics.median(counted[2:]))


def cost(rig: Rig, fast: bool) -> Iterator[Row]:
    """Wall and device time of a training step with 0, 20, 300 and 800 boundaries more, in pairs."""
    costs = step_costs(rig, 2 if fast else 7, 4 if fast else 25)
    for each in costs:
        what = f"{each.boundaries} boundaries a step"
        yield figure(f"{what}: host time added", each.host_us, "us/step", f"to {each.plain.host_us:.0f}; {each.spread}")
    name = "cpu_us" if rig.simulated else "host_us"
    yield at_most("boundary", rig.simulated, "a boundary", per_boundary(costs, name), "us")
    costs = step_costs(rig, 1 if fast else 3, 2 if fast else 10, lead=True)
    for each in costs:
        what = f"{each.boundaries} boundaries a step: device time added"
        yield figure(what, each.device_us, "us/step", f"to {each.plain.device_us:.0f}")
    yield at_most("device_time", rig.simulated, "a boundary", per_boundary(costs, "device_us"), "us")
    for layers in (4,) if fast else (4, 8):
        yield figure(f"FSDP2 of {layers} layers: boundaries a step", fsdp2_boundaries(rig, layers), "count")
    dist.destroy_process_group()
