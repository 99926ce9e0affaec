"""Whether torch.compile is tracing a graph. What hooks see meanwhile does not run, and must not be counted."""

from __future__ import annotations

from torch import compiler
from torch._guards import TracingContext


def _is_tracing() -> bool:
    """For a torch whose own flag is down while AOTAutograd traces what Dynamo has found: its `autograd.grad` does
    not count as a backward pass of the training."""
    return compiler.is_compiling() or TracingContext.try_get() is not None


# torch 2.13 holds its flag for the whole of a compilation, by this context manager; 2.4 does not.
is_compiling = compiler.is_compiling if hasattr(compiler, "_compile_session_context") else _is_tracing
