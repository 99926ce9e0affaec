"""What the host of a rank did and when, in ns of CLOCK_MONOTONIC, for the comparison with the log of its device."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

Span = tuple[int, int]


@dataclass
class Marks:
    data: list[Span] = field(default_factory=list)
    save: list[Span] = field(default_factory=list)
    beside: list[Span] = field(default_factory=list)
    """While the host waited for a stream that waited for a collective."""
    end: list[Span] = field(default_factory=list)
    """From the end of the last step on."""
    losses: list[torch.Tensor] = field(default_factory=list)
    home: int = 0
    """The stream that the training thread uses, by its number in the log."""

    @contextmanager
    def during(self, what: list[Span]) -> Iterator[None]:
        begun = time.monotonic_ns()
        try:
            yield
        finally:
            what.append((begun, time.monotonic_ns()))

    def batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        batches = iter(loader)
        while True:
            begun = time.monotonic_ns()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.data.append((begun, time.monotonic_ns()))
            yield batch

    def write(self, path: Path) -> None:
        losses = [loss.item() for loss in self.losses]
        path.write_text(json.dumps({**vars(self), "losses": losses}))


def stream_number(stream: torch.cuda.Stream) -> int:
    """The number of a stream in the log of its device."""
    runtime = ctypes.CDLL(None)
    runtime.standin_stream_number.argtypes = [ctypes.c_void_p]
    return int(runtime.standin_stream_number(stream.cuda_stream))
