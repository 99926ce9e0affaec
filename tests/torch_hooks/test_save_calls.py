"""Which functions that save are replaced."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import pytest

from whyidle.torch_hooks.save_calls import _is_held

SOURCE = """
def save(held, module, again=0):
    return save(held, module, again - 1) if again else held(save.__code__, module)

def checkpoint(held, module):
    return save(held, module)
"""


@pytest.fixture
def module() -> Any:
    made = ModuleType("program")
    exec(SOURCE, vars(made))
    return made


def test_a_function_that_only_its_module_has_is_not_held(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_referrers", None)  # it takes as long as a full collection
    code = module.save.__code__
    found = [_is_held(code, module), module.save(_is_held, module), module.save(_is_held, module, 3)]
    found.append(module.checkpoint(_is_held, module))
    assert found == [False] * 4


def test_a_function_that_something_else_has_is_held(module: Any) -> None:
    callbacks = [module.save]
    assert _is_held(module.save.__code__, module)
    assert module.save(_is_held, module, 3)
    del callbacks[:]
    other = ModuleType("other")
    vars(other)["save"] = module.save
    assert module.checkpoint(_is_held, module)


def test_a_function_whose_name_has_gone_is_not_replaced(module: Any) -> None:
    code = module.save.__code__
    del module.save
    assert _is_held(code, module)
