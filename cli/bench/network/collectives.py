"""The collectives that are measured: their buffers, the calls, and checks of the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ....advisor.bench.network.operations import elements
from .world import World, gather

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in torch 2.13
_MOST_EXACT: dict[torch.dtype, int] = {torch.float32: 1 << 24, torch.float16: 1 << 11, torch.bfloat16: 1 << 8}
"""The type represents whole numbers up to this one exactly."""
_PATTERN = 127
"""A prime number, so that a part at a wrong place does not look right by chance."""


class Group(NamedTuple):
    """The ranks of a collective. ``handle``: torch's group, None for the world."""

    ranks: tuple[int, ...]
    handle: Any = None

    @property
    def size(self) -> int:
        return len(self.ranks)


class Collective:
    """One operation with one size in one group."""

    def __init__(self, world: World, op: str, size: int, group: Group, dtype: torch.dtype):
        self.op, self.group = op, group
        self.count = elements(op, size, group.size, dtype.itemsize)
        self.size = self.count * dtype.itemsize
        """The requested bytes, rounded to whole elements and equal parts."""
        self._part = self.count // group.size
        self._me = group.ranks.index(world.rank)
        self._input = torch.zeros(self._part if op == "all_gather" else self.count, dtype=dtype, device=world.device)
        has_output = op in ("all_gather", "reduce_scatter", "all_to_all")
        outputs = self._part if op == "reduce_scatter" else self.count if has_output else 0
        self._output = torch.zeros(outputs, dtype=dtype, device=world.device)

    def call(self) -> None:
        _CALLS[self.op](self)

    def is_right(self, world: World) -> bool | None:
        """Makes one more call and checks its result on this rank. None if the type cannot represent the sums
        exactly."""
        place = torch.arange(self.count, device=world.device)
        reduces = self.op in ("all_reduce", "reduce_scatter")
        pattern = 2 if reduces else _PATTERN
        if reduces and self.group.size > _MOST_EXACT[self._input.dtype]:
            return None
        part = slice(self._me * self._part, (self._me + 1) * self._part)
        mine = (place + self._me) % pattern
        wanted = {
            "all_reduce": lambda: sum((place + member) % 2 for member in range(self.group.size)),
            "reduce_scatter": lambda: sum((place[part] + member) % 2 for member in range(self.group.size)),
            "all_gather": lambda: torch.cat([(place[: self._part] + m) % pattern for m in range(self.group.size)]),
            "all_to_all": lambda: torch.cat([(place[part] + m) % pattern for m in range(self.group.size)]),
            "broadcast": lambda: place % pattern,
        }[self.op]()
        self._input.copy_(mine[: self._input.numel()])
        self._output.fill_(-1)
        self.call()
        world.finish()
        found = self._output if self._output.numel() else self._input
        return bool(torch.equal(found, wanted.to(found.dtype)))  # type: ignore[union-attr]


def _all_reduce(one: Collective) -> None:
    dist.all_reduce(one._input, group=one.group.handle)


def _all_gather(one: Collective) -> None:
    gather(one._output, one._input, group=one.group.handle)


def _reduce_scatter(one: Collective) -> None:
    _scatter(one._output, one._input, group=one.group.handle)


def _all_to_all(one: Collective) -> None:
    dist.all_to_all_single(one._output, one._input, group=one.group.handle)


def _broadcast(one: Collective) -> None:
    dist.broadcast(one._input, src=one.group.ranks[0], group=one.group.handle)


_CALLS: dict[str, Callable[[Collective], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}
