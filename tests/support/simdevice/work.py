"""Work with a known duration."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

_C: Any = sys.modules["_simdevice"]


class _Busy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, forward_ms: float, backward_ms: float, tag: str) -> torch.Tensor:
        ctx.backward_ms, ctx.tag = backward_ms, tag
        return _spend(input, forward_ms, f"{tag} forward")

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return _spend(grads[0], ctx.backward_ms, f"{ctx.tag} backward"), None, None, None


def _spend(input: torch.Tensor, ms: float, tag: str) -> torch.Tensor:
    return torch.ops.simdevice.busy(input, ms, tag) if input.device.type == "sim" else input.clone()


def busy(input: torch.Tensor, forward_ms: float, backward_ms: float = 0.0, tag: str = "busy") -> torch.Tensor:
    """A copy of the input that takes exactly this long on the current stream, as does its gradient. On a CPU tensor it
    takes no time, so that a script has the same results there."""
    return _Busy.apply(input, forward_ms, backward_ms, tag)  # pyright: ignore


def occupy(ms: float, tag: str = "busy") -> None:
    """Keeps the current stream of the current device busy for this long."""
    _C.occupy(ms, tag)


class Block(nn.Module):
    """A linear layer and a nonlinearity with a set duration."""

    def __init__(self, width: int, forward_ms: float = 0.0, backward_ms: float = 0.0):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.forward_ms, self.backward_ms = forward_ms, backward_ms

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return busy(torch.tanh(self.linear(input)), self.forward_ms, self.backward_ms, "block")
