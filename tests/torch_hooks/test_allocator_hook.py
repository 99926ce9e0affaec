"""The hook on `torch.cuda.empty_cache`: it is undone, and a rank without a device has no such phase."""

from __future__ import annotations

import torch

from whyidle.torch_hooks.hooks import allocator
from whyidle.torch_hooks.session import Session


def test_undo_restores_the_function_in_the_package_and_its_module() -> None:
    before = torch.cuda.empty_cache, torch.cuda.memory.empty_cache
    session = Session()
    undo = allocator.install(session)
    assert session.states["allocator"] == "active"
    assert torch.cuda.empty_cache is not before[0]
    torch.cuda.empty_cache()  # without a device
    undo()
    assert (torch.cuda.empty_cache, torch.cuda.memory.empty_cache) == before
