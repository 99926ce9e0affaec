"""A training loop that only loads data, and how long it waits for each batch."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .plan import Plan, Tell

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Loop:
    """The times of a loop, in seconds. ``waits`` and ``ends`` have one entry per batch, ``reads`` one per sample."""

    waits: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """When each step ended, since the loop began."""
    reads: list[float] = field(default_factory=list)
    samples: int = 0
    bytes: int = 0
    start: float = 0.0
    """How long the start of the workers took. It is included in ``ends``, but not in ``waits``."""
    closing: float = 0.0
    """How long the loop waited at the end, until the workers had exited."""
    whole: bool = True
    """Whether everything was read before the time was over."""

    @property
    def seconds(self) -> float:
        return self.ends[-1] if self.ends else 0.0


class Batch:
    """A batch: the bytes of its samples in one tensor, and for each sample the bytes that were read and the seconds."""

    __slots__ = ("data", "read", "seconds")

    def __init__(self, samples: list[tuple[Tensor, int, float]]):
        import torch

        self.data = torch.cat([data for data, _, _ in samples])
        self.read = [read for _, read, _ in samples]
        self.seconds = [seconds for _, _, seconds in samples]


def loader(dataset: Any, plan: Plan, shuffle: bool) -> Any:
    """A torch DataLoader that returns a :class:`Batch` each time."""
    import torch
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        batch_size=plan.batch,
        shuffle=shuffle,
        num_workers=plan.workers,
        collate_fn=Batch,
        generator=torch.Generator().manual_seed(0),
    )


def run(batches: Iterable[Batch], plan: Plan, tell: Tell, whole: int) -> Loop:
    """Takes batches until there are no more or the time is over. ``whole``: the number of samples.

    First it runs a loader with one batch, so that the hooks begin to record there and not in the first wait that
    counts.
    """
    from torch.utils.data import DataLoader

    one: Any = [0]
    list(DataLoader(one))
    loop = Loop()
    begun = time.perf_counter()
    iterator = iter(batches)
    loop.start = time.perf_counter() - begun
    while True:
        asked = time.perf_counter()
        batch = next(iterator, None)
        got = time.perf_counter()
        if batch is None:
            loop.closing = got - asked
            break
        loop.waits.append(got - asked)
        loop.reads += batch.seconds
        loop.samples += len(batch.read)
        loop.bytes += sum(batch.read)
        if plan.compute:
            time.sleep(plan.compute)
        loop.ends.append(time.perf_counter() - begun)
        tell(loop.samples / whole, "")
        if plan.seconds and loop.ends[-1] > plan.seconds and loop.samples < whole:
            loop.whole = False
            break
    return loop
