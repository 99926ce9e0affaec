"""Checks that whyidle changes neither what the loops of `programs.py` compute nor, in pairs, how long they take."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Container, Iterator
from typing import Any

import torch

from .cost import recording
from .programs import PROGRAMS, Program, Round, Spans
from .reasons import REASONS
from .rig import Rig
from .rows import Row, at_most, figure
from .truth import of_each_program

ROUNDS = 12
PAIRS = 4
SLEEPS = {
    "slow loader",
    "CUDA graph behind a slow loader",
    "ResNet-50 behind a loader",
    "torch.save in the loop",
    "decodes in workers",
    "a thread has Python's lock",
}
"""The length of their steps is decided by a sleep, a disk or other threads."""


def unchanged(rig: Rig, fast: bool, wanted: Container[str]) -> Iterator[Row]:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        seconds = 0.1 if fast else 0.3
        programs = {**PROGRAMS, **REASONS}
        yield from of_each_program(rig, lambda name, program: _compared(rig, name, program, seconds), wanted, programs)
    finally:
        torch.use_deterministic_algorithms(False)


def _compared(rig: Rig, name: str, program: Program, seconds: float) -> Iterator[Row]:
    with recording():
        hooked, _ = _trained(rig, program)
    plain, step = _trained(rig, program)
    worst = max(float((a - b).abs().max()) for a, b in zip(plain, hooked, strict=True))
    yield at_most("changed", rig.simulated, f"{name}: largest change of a parameter", worst, "", f"{ROUNDS} rounds")
    if name in SLEEPS:
        return
    _block(rig, step, seconds)
    added, usual = [], []
    for _ in range(PAIRS):
        usual.append(_block(rig, step, seconds))
        with recording():
            _block(rig, step, 0.1)
            added.append(_block(rig, step, seconds) - usual[-1])
    share = statistics.median(added) / statistics.median(usual)
    spread = f"to {statistics.median(usual):.0f} us; {min(added):+.0f} .. {max(added):+.0f}"
    yield figure(f"{name}: time added, {share:+.2%}", statistics.median(added), "us/round", spread)


def _trained(rig: Rig, program: Program) -> tuple[list[Any], Round]:
    """The parameters after some rounds, and a function that makes another round."""
    torch.manual_seed(3)
    model, step = program.make(rig, Spans())
    for _ in range(ROUNDS):
        step()
    rig.synchronize()
    parameters = (getattr(each, "_local_tensor", each) for each in model.parameters())
    return [each.detach().float().cpu() for each in parameters], step


def _block(rig: Rig, step: Round, seconds: float) -> float:
    """Microseconds a round."""
    begun, rounds = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        step()
        rounds += 1
    rig.synchronize()
    return (time.perf_counter() - begun) / rounds * 1e6
